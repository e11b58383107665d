"""Name the language of short texts with langid and lingua.

The texts are translated messages of the Debian packages that are installed (/usr/share/locale/*/LC_MESSAGES/*.mo).
Writes a table with one row per text: what both packages say, how sure they are, the true language, and how long the
text is. Needs `pip install langid lingua-language-detector`, nothing else.

    python examples/other_systems/identify_languages.py languages.csv --texts 12000
"""

import argparse
import csv
import gettext
import random
import re
from pathlib import Path

from langid.langid import LanguageIdentifier, model
from lingua import IsoCode639_1, LanguageDetectorBuilder

CATALOGUES = Path("/usr/share/locale")
LANGUAGES = ("ca", "cs", "da", "de", "es", "fi", "fr", "it", "nl", "pl", "pt", "ro", "sk", "sv")
COLUMNS = ("langid", "langid_score", "langid_confidence", "lingua", "lingua_confidence", "target", "length", "text")
LENGTHS = {12: "up to 12", 25: "13 to 25", 50: "26 to 50"}


def messages(language: str) -> set[str]:
    """Short messages without placeholders, options and names of files."""
    texts = set()
    for path in CATALOGUES.glob(f"{language}/LC_MESSAGES/*.mo"):
        if path.name.startswith("iso_"):  # names of countries and languages are alike in many languages
            continue
        try:
            with path.open("rb") as handle:
                catalogue = gettext.GNUTranslations(handle)
        except UnicodeDecodeError:  # a few catalogues name no encoding
            continue
        for english, translated in catalogue._catalog.items():  # noqa: SLF001 (there is no public way)
            text = " ".join(str(translated).replace("_", "").split())
            if translated != english and 4 <= len(text) <= 100 and not re.search(r"[%<>{}\\/=|$@#\[\]]|--", text):
                texts.add(text)
    return texts


def length_of(text: str) -> str:
    """The group that a text belongs to by its number of characters."""
    for most, name in LENGTHS.items():
        if len(text) <= most:
            return name
    return "over 50"


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--texts", type=int, default=12000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    ranked, scaled = (LanguageIdentifier.from_modelstring(model, norm_probs=scale) for scale in (False, True))
    ranked.set_languages(list(LANGUAGES))
    scaled.set_languages(list(LANGUAGES))
    codes = [getattr(IsoCode639_1, code.upper()) for code in LANGUAGES]
    detector = LanguageDetectorBuilder.from_iso_codes_639_1(*codes).build()
    cases = [(text, language) for language in LANGUAGES for text in sorted(messages(language))]
    random.Random(options.seed).shuffle(cases)
    with options.out.open("w", newline="", encoding="utf-8") as handle:
        writer = csv.writer(handle)
        writer.writerow(COLUMNS)
        for text, language in cases[: options.texts]:
            language_by_langid, score = ranked.classify(text)
            _, confidence = scaled.classify(text)
            best = detector.compute_language_confidence_values(text)[0]
            language_by_lingua = best.language.iso_code_639_1.name.lower()
            answers = [language_by_langid, f"{score:.4f}", f"{confidence:.6f}", language_by_lingua, f"{best.value:.6f}"]
            writer.writerow([*answers, language, length_of(text), text])


if __name__ == "__main__":
    main()
