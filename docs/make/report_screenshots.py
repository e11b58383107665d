"""Writes a page of real predictions and photographs it: docs/screenshots/{light,dark}.png.

    python docs/make/report_screenshots.py [REPORT]

A page given on the command line is photographed instead.
"""

import io
import shutil
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from calibrant import samples
from calibrant.decisions import fit_policy
from calibrant.report import write_report

# Name, width, height, colour scheme.
SHOTS = (("light", 1280, 1420, "light"), ("dark", 1280, 1420, "dark"))
HERE = Path(__file__).resolve().parents[1] / "screenshots"


def sample_page(path):
    """CIFAR-10, ResNet-32: a temperature from a fifth of the validation images, a rule from the rest."""
    name = "cifar10-resnet32-nll-averaged"
    policy = fit_policy(samples.load(name, "val"), target_accuracy=0.99, share=0.2)
    return write_report({"ResNet-32": samples.load(name)}, path, policy=policy)


def photograph(browser, page_path, name, width, height, scheme):
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
    page.set_default_timeout(240_000)  # also on a busy machine
    page.goto(page_path.as_uri())
    for chart in ("chart-reliability", "chart-threshold"):
        # Charts are drawn when they come into view.
        page.locator(f"#{chart}").scroll_into_view_if_needed()
        page.wait_for_selector(f"#{chart}[data-drawn]")
    page.evaluate("scrollTo(0, 0)")
    picture = Image.open(io.BytesIO(page.screenshot()))
    # 128 colours are enough for flat areas and text, at a third of the size.
    target = HERE / f"{name}.png"
    picture.convert("RGB").quantize(128).save(target, optimize=True)
    print(f"{target.name}: {picture.width} x {picture.height}, {target.stat().st_size / 1000:.0f} kB")
    page.close()


def main():
    HERE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        page_path = Path(sys.argv[1]).resolve() if sys.argv[1:] else sample_page(Path(temporary) / "report.html")
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=shutil.which("chromium"), args=["--headless", "--no-sandbox", "--disable-gpu"]
            )
            for shot in SHOTS:
                photograph(browser, page_path, *shot)
            browser.close()


if __name__ == "__main__":
    main()
