"""Serves a model of handwritten digits and photographs its review page: docs/screenshots/review-*.png.

    python docs/make/review_screenshots.py [folder]

Needs scikit-learn (for the digits), torch and a Chromium of Playwright.
"""

import io
import json
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from playwright.sync_api import sync_playwright
from sklearn.datasets import load_digits
from torch import nn

from calibrant import Predictions
from calibrant.calibration import TemperatureScaling
from calibrant.decisions import Policy, choose_shortlist, choose_threshold
from calibrant.deployment import export_onnx

NAMES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
# Name, width, height, colour scheme.
SHOTS = (("desktop", 1200, 860, "light"), ("phone", 390, 844, "dark"))


def export(path: Path) -> np.ndarray:
    """A small network with a policy; returns the images that it was not trained on."""
    torch.manual_seed(0)
    x, y = load_digits(return_X_y=True)
    pixels, targets = torch.from_numpy(x.astype(np.float32) / 16), torch.from_numpy(y)
    network = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-2)
    for _ in range(40):
        optimiser.zero_grad()
        nn.functional.cross_entropy(network(pixels[:600]), targets[:600]).backward()
        optimiser.step()
    with torch.no_grad():
        held_out = Predictions.from_logits(network(pixels[600:]), targets[600:], class_names=NAMES)
    some, rest = held_out.split(0.2)
    calibrator = TemperatureScaling().fit(some)
    rule = choose_threshold(calibrator(rest), 0.97)
    shortlist = choose_shortlist(calibrator(rest), rule=rule)
    policy = Policy(10, calibrator, rule, shortlist, class_names=tuple(NAMES))
    export_onnx(network, path, example=pixels[600:], ranges={"inputs": (0, 1)}, policy=policy)
    return pixels[600:].numpy()


def fill(address: str, images: np.ndarray, pictures: Path) -> None:
    """Let the service decide about images whose pictures lie in a folder."""
    facts = []
    for number, image in enumerate(images):
        grey = Image.fromarray((255 - 255 * image.reshape(8, 8)).astype(np.uint8))
        grey.resize((224, 224), Image.Resampling.LANCZOS).save(pictures / f"{number}.png")
        text = f"Field {number % 4 + 1} of form {number // 4 + 1}"
        facts.append({"picture": f"{number}.png", "text": text, "site": ("north", "south")[number % 2]})
    body = {"inputs": np.round(images, 4).tolist(), "ids": [f"digit-{n}" for n in range(len(images))], "extras": facts}
    request = urllib.request.Request(f"{address}/decisions", json.dumps(body).encode())
    request.add_header("Content-Type", "application/json")
    urllib.request.urlopen(request).read()


def main() -> None:
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/screenshots")
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        folder = Path(place)
        pictures = folder / "pictures"
        pictures.mkdir()
        images = export(folder / "model.onnx")[:300]
        command = [sys.executable, "-m", "calibrant", "serve", str(folder / "model.onnx"), "--port", "0", "--review"]
        command += ["--log", str(folder / "log.db"), "--picture-folder", str(pictures)]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            address = server.stdout.readline().split()[-1]
            fill(address, images, pictures)
            browser = playwright.chromium.launch(
                executable_path=shutil.which("chromium"), args=["--headless", "--no-sandbox", "--disable-gpu"]
            )
            for name, width, height, colours in SHOTS:
                phone = name == "phone"
                viewport = {"width": width, "height": height}
                page = browser.new_page(viewport=viewport, color_scheme=colours, is_mobile=phone, has_touch=phone)
                page.goto(f"{address}/review")
                page.wait_for_selector("#case:not([hidden])")
                page.fill("#who", "Ada")
                page.evaluate("document.activeElement.blur()")
                picture = Image.open(io.BytesIO(page.screenshot()))
                picture.convert("RGB").quantize(128).save(target / f"review-{name}-{colours}.png", optimize=True)
            browser.close()
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
