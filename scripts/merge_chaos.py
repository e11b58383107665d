"""Write the tables of the parts of one campaign of chaos.py as one table.

    python scripts/merge_chaos.py --machine "16 cores, of which 7 were free" chaos-*.txt

The parts must be of one commit and the same libraries, which is what the first line of each says; others are refused.
"""

import argparse
import re
import sys
from pathlib import Path

ROW = re.compile(r"(.{18})(.{16})\s*(-|\d+)" + r"\s+(\d+)" * 5)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machine", required=True, help="in plain words")
    parser.add_argument("tables", nargs="+", type=Path)
    options = parser.parse_args()
    parts = [path.read_text().splitlines() for path in options.tables]
    if len(heads := {part[0] for part in parts}) > 1:
        sys.exit(f"the parts are of different campaigns: {sorted(heads)}")
    totals, rows, exceptions = [0] * 5, [], []
    for part in parts:
        exceptions += part[part.index("") + 2 :]
        for line in part[3:]:
            counts = ROW.fullmatch(line)
            # A disturbance without a life was not reached before the campaign ended.
            if counts and int(counts[4]) and not line.startswith("in all"):
                rows.append(line)
                totals = [total + int(count) for total, count in zip(totals, counts.groups()[3:], strict=True)]
    in_all = f"{'in all':34}{'-':>8}" + "".join(f"{n:{w}}" for n, w in zip(totals, (8, 8, 9, 11, 12), strict=True))
    commands = [part[1] for part in parts]
    print(parts[0][0], options.machine, *commands, "", parts[0][2], *rows, in_all, "", sep="\n")
    print("identical: runs that ended, after all of that, with the bytes of an undisturbed one (but clock readings);")
    print("for serve: lives after which the log held everything that was answered.", *exceptions, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
