"""The examples with systems that are not ours run, and what they write can be judged."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from calibrant import Predictions

FOLDER = Path(__file__).parents[2] / "examples" / "other_systems"


def start(script, *arguments):
    command = [sys.executable, FOLDER / script, *map(str, arguments)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(shutil.which("tesseract") is None, reason="needs Debian's tesseract-ocr")
def test_ocr(tmp_path):
    pytest.importorskip("PIL", reason="needs Pillow to render pages")
    if not Path("/usr/share/fonts/truetype/dejavu/DejaVuSerif-Bold.ttf").is_file():
        pytest.skip("needs Debian's fonts-dejavu")
    start("read_words.py", tmp_path / "words.csv", "--pages", 6)
    words = Predictions.load(tmp_path / "words.csv")
    assert len(words) > 150
    assert len(set(words.extras["page"])) > 4
    assert words.correct.mean() > 0.5
    said = start("judge.py", tmp_path / "words.csv", "none", "--only", "words", "--draws", 3, "--out", tmp_path)
    assert "| promised | 0.0 |" in said  # so few pages can promise nothing
    assert (tmp_path / "words.html").is_file()


def test_languages_and_the_cascade(tmp_path):
    pytest.importorskip("langid", reason="needs the package langid")
    pytest.importorskip("lingua", reason="needs the package lingua-language-detector")
    if not list(Path("/usr/share/locale/de/LC_MESSAGES").glob("*.mo")):
        pytest.skip("needs translated messages of Debian's packages")
    start("identify_languages.py", tmp_path / "languages.csv", "--texts", 1500)
    only = ("--only", "lingua-length", "langid-score", "cascade")
    said = start("judge.py", "none", tmp_path / "languages.csv", *only, "--draws", 3, "--out", tmp_path)
    assert said.count("| promised |") == 6
    assert all((tmp_path / f"{name}.html").is_file() for name in only[1:])
