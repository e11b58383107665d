"""How long a user waits before anything happens: `import calibrant`, and the help of the command line.

Run: python benchmarks/imports.py [--repeats 15] [--out results/benchmarks/imports.txt]

Every command starts a fresh interpreter, in turns, and the least of all repeats counts: others who use the machine only
add to it. `import numpy` is the yardstick. Python by itself is shown because every command contains it.
"""

import argparse
import platform
import re
import resource
import subprocess
import sys
import time
from pathlib import Path

NUMPY = "python -c 'import numpy'"
NAMES = (
    *("demo", "train", "methods", "data", "evaluate", "calibrate", "route", "export"),
    *("monitor", "serve", "compare", "ablate", "sweep", "record", "report"),
)
COMMANDS = {
    "python -c ''": ["-c", ""],
    NUMPY: ["-c", "import numpy"],
    "python -c 'import calibrant'": ["-c", "import calibrant"],
    "calibrant --help": ["-m", "calibrant", "--help"],
    "calibrant --version": ["-m", "calibrant", "--version"],
    **{f"calibrant {name} --help": ["-m", "calibrant", name, "--help"] for name in NAMES},
    "from calibrant import Predictions, evaluate": ["-c", "from calibrant import Predictions, evaluate"],
    "import torch": ["-c", "import torch"],
}
TRACED = ("python -c 'import calibrant'", "calibrant --help")


def once(arguments: list[str]) -> tuple[float, float]:
    """Seconds on the clock and of the processor for one fresh interpreter."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def heaviest(arguments: list[str], count: int = 5) -> list[str]:
    """The modules that took longest by themselves, from `python -X importtime`."""
    told = subprocess.run([sys.executable, "-X", "importtime", *arguments], check=True, capture_output=True, text=True)
    rows = re.findall(r"import time: +(\d+) \| +\d+ \| +(\S+)", told.stderr)
    largest = sorted(((int(own), name) for own, name in rows), reverse=True)[:count]
    total = sum(int(own) for own, _ in rows)
    return [f"{len(rows)} modules, {total / 1000:.0f} ms", *(f"{name} {own / 1000:.0f} ms" for own, name in largest)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in COMMANDS}
    for _ in range(options.repeats):
        for name, arguments in COMMANDS.items():
            times[name].append(once(arguments))
    least = {name: tuple(map(min, zip(*found, strict=True))) for name, found in times.items()}
    lines = [
        f"Python {platform.python_version()}, least of {options.repeats} fresh interpreters each\n",
        f"{'':<46}{'seconds':>9}{'processor':>14}{'x import numpy':>16}",
    ]
    for name, (seconds, processor) in least.items():
        lines.append(f"{name:<46}{seconds:>9.3f}{processor:>14.3f}{processor / least[NUMPY][1]:>16.2f}")
    lines += ["", "python -X importtime, the modules that took longest by themselves:"]
    lines += [f"{name}: {', '.join(heaviest(COMMANDS[name]))}" for name in TRACED]
    text = "\n".join(lines)
    print(text)
    if options.out is not None:
        options.out.write_text(f"{text}\n")


if __name__ == "__main__":
    main()
