"""Render pages of English words with noise, blur and several fonts, and let tesseract read them.

Writes a table with one row per word that tesseract found: predicted, confidence, target, page, font. Needs Debian's
packages tesseract-ocr and fonts-dejavu-core, and Pillow.

    python examples/other_systems/read_words.py words.csv --pages 600
"""

import argparse
import csv
import os
import re
import subprocess
import tempfile
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

FONTS = ("DejaVuSans", "DejaVuSerif", "DejaVuSansMono", "DejaVuSerif-Bold", "DejaVuSans-Bold")
FOLDER = Path("/usr/share/fonts/truetype/dejavu")
ROWS, COLUMNS = 10, 4
CELL = 240, 48


def vocabulary() -> list[str]:
    """Words of Python's own manual."""
    return sorted(set(re.findall(r"\b[a-z]{3,12}\b", " ".join(topics.values()))))


def render(words: list[str], rng: np.random.Generator, font: str) -> Image.Image:
    """A page of words in a grid, damaged as scans are."""
    size = int(rng.integers(17, 27))
    page = Image.new("L", (COLUMNS * CELL[0], ROWS * CELL[1]), 255)
    draw = ImageDraw.Draw(page)
    face = ImageFont.truetype(str(FOLDER / f"{font}.ttf"), size)
    for place, word in enumerate(words):
        row, column = divmod(place, COLUMNS)
        draw.text((column * CELL[0] + 12, row * CELL[1] + 10), word, font=face, fill=int(rng.integers(0, 90)))
    page = page.filter(ImageFilter.GaussianBlur(float(rng.uniform(0.5, 2.2))))
    noise = rng.normal(0, rng.uniform(1, 16), (page.height, page.width))
    return Image.fromarray((np.asarray(page, dtype=np.float64) + noise).clip(0, 255).astype(np.uint8))


def read(page: Image.Image) -> list[tuple[int, str, float]]:
    """The words that tesseract finds: number of the cell, text, confidence in 0..1."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "page.png"
        page.save(path, dpi=(150, 150))
        command = ["tesseract", str(path), "-", "--psm", "6", "-l", "eng", "tsv"]
        one_thread = os.environ | {"OMP_THREAD_LIMIT": "1"}
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=one_thread)  # noqa: S603
    found = []
    for line in csv.DictReader(done.stdout.splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE):
        if line["text"].strip() and float(line["conf"]) >= 0:
            row = (int(line["top"]) + int(line["height"]) // 2) // CELL[1]
            column = (int(line["left"]) + int(line["width"]) // 2) // CELL[0]
            found.append((row * COLUMNS + column, line["text"].strip(), float(line["conf"]) / 100))
    return found


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--pages", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    known = vocabulary()
    with options.out.open("w", newline="", encoding="utf-8") as handle:
        writer = csv.writer(handle)
        writer.writerow(["predicted", "confidence", "target", "page", "font"])
        for number in range(options.pages):
            words = [str(word) for word in rng.choice(known, ROWS * COLUMNS)]
            font = FONTS[number % len(FONTS)]
            for place, text, sure in read(render(words, rng, font)):
                if place < len(words):
                    writer.writerow([text, f"{sure:.4f}", words[place], number, font])


if __name__ == "__main__":
    main()
