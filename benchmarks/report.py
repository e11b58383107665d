"""Size and speed of the report page: ten methods, 10,000 predictions each, in headless chromium.

    python benchmarks/report.py [--methods 10] [--cases 10000] [--loads 7]
    python benchmarks/report.py --large

Prints the seconds that writing takes, the size, and for each of several loads from disk (after one to warm the disk)
when the slider works and when the charts can be drawn, counted from the start of navigation. Targets: below 8 MB, and
interactive within 2 s. With --large it writes the default page of one method with 100,000 and with 1,000,000 rows
instead, without a browser. Targets: 8 s, and 11 s.
"""

import argparse
import platform
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from playwright.sync_api import Browser, sync_playwright

from calibrant import Predictions
from calibrant.report import write_report

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]


def predictions(seed: int, cases: int, classes: int = 10) -> Predictions:
    targets = np.random.default_rng(0).integers(0, classes, cases)
    logits = np.random.default_rng(seed).normal(size=(cases, classes)).astype(np.float32) * 2
    logits[np.arange(cases), targets] += 6
    return Predictions.from_logits(logits, targets)


def load(browser: Browser, path: Path) -> tuple[float, float]:
    """Seconds until the slider works, and until Plotly is read and the charts draw."""
    page = browser.new_page()
    # An observer inside the page notes the moments; asking from outside would add the asking to them.
    page.add_init_script(
        """window.moments = {};
        new MutationObserver(() => {
          for (const name of ["live", "ready"]) {
            if (document.documentElement.dataset[name]) window.moments[name] ??= performance.now();
          }
        }).observe(document, {attributes: true, subtree: true, attributeFilter: ["data-live", "data-ready"]});"""
    )
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-ready=true]")
    page.wait_for_selector("#chart-reliability[data-drawn]")
    moments = page.evaluate("window.moments")
    page.close()
    return moments["live"] / 1000, moments["ready"] / 1000


def write_large() -> None:
    for cases, target in ((100_000, 8), (1_000_000, 11)):
        model = predictions(1, cases)
        with tempfile.TemporaryDirectory() as folder:
            start, processor = time.perf_counter(), time.process_time()
            path = write_report(model, Path(folder) / "report.html")
            wall, processor = time.perf_counter() - start, time.process_time() - processor
            size = path.stat().st_size / 1e6
        print(f"{cases:,} rows: {wall:.1f} s, {processor:.1f} s of CPU time (target: {target} s), {size:.1f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--methods", type=int, default=10)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--loads", type=int, default=7)
    options = parser.parse_args()
    if options.large:
        write_large()
        return
    entries = [(f"method {i}", predictions(i, options.cases)) for i in range(options.methods)]
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        start = time.perf_counter()
        path = write_report(entries, Path(folder) / "report.html")
        written = time.perf_counter() - start
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        print(f"python {platform.python_version()}, chromium {browser.version}, {platform.machine()}")
        print(f"{options.methods} methods x {options.cases:,} predictions, 1,000 resamples: written in {written:.1f} s")
        print(f"size {path.stat().st_size / 1e6:.2f} MB (target: below 8)")
        load(browser, path)
        times = [load(browser, path) for _ in range(options.loads)]
        for name, values in zip(("slider works", "charts ready"), zip(*times, strict=True), strict=True):
            middle = statistics.median(values)
            print(f"{name} after {middle:.2f} s ({min(values):.2f} to {max(values):.2f}, {middle / 2:.0%} of 2 s)")
        browser.close()


if __name__ == "__main__":
    main()
