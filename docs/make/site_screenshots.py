"""Builds the site and photographs it: docs/screenshots/site-{light,dark,phone}.png.

    python docs/make/site_screenshots.py [PAGE FOLDER]

With a page (as "api/losses.html") and a folder, that page is photographed into the folder instead, in all three ways.
"""

import io
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parents[2]
# Name, width, height, colour scheme.
SHOTS = (("light", 1280, 1000, "light"), ("dark", 1280, 1000, "dark"), ("phone", 390, 900, "light"))


def main():
    page, folder = sys.argv[1:] or ("index.html", ROOT / "docs" / "screenshots")
    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as playwright:
        subprocess.run(
            [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", temporary],
            cwd=ROOT,
            check=True,
        )
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"),
            args=["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"],
        )
        for name, width, height, scheme in SHOTS:
            tab = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
            tab.goto((Path(temporary) / page).as_uri())
            target = Path(folder) / f"site-{name}.png"
            # 128 colours are enough for flat areas and text, at a third of the size.
            Image.open(io.BytesIO(tab.screenshot())).convert("RGB").quantize(128).save(target, optimize=True)
            print(f"wrote {target.name}, {target.stat().st_size / 1000:.0f} kB")
            tab.close()
        browser.close()


if __name__ == "__main__":
    main()
