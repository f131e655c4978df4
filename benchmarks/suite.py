"""Every benchmark, in order: one command that makes every figure README and the documentation quote.

    benchmarks/all              # about 50 minutes on two idle cores; goes on where it was stopped
    benchmarks/all mining       # some of them
    benchmarks/all --again      # also what this machine has measured of this code

Results that other benchmark code made are deleted first. At the end README's table is written anew.
"""

from __future__ import annotations

import importlib
import sys

import figures
import harness
import quote
import scale


def benchmarks(names: list[str]) -> list[tuple[harness.Benchmark, str]]:
    """The chosen benchmarks with their files; those whose peer is not installed are named and left out."""
    unknown = [name for name in names if name not in figures.MODULES]
    if unknown:
        raise SystemExit(f"no benchmark {unknown[0]!r}; there are {', '.join(figures.MODULES)}")
    found = []
    for name in names or figures.MODULES:
        try:
            module = importlib.import_module(figures.MODULES[name])
        except ModuleNotFoundError as error:
            print(f"{name}: skipped, it needs {error.name}: pip install -e '.[benchmark]'", file=sys.stderr)
            continue
        (benchmark,) = harness.chosen(module.BENCHMARKS, [name])
        found.append((benchmark, str(module.__file__)))
    return found


def main() -> None:
    arguments = harness.parser(__doc__).parse_args()
    if not (arguments.anyway or arguments.small):
        for path, reason in figures.delete_stale():
            print(f"deleted {path.name}: {reason}", file=sys.stderr)
    chosen = benchmarks(arguments.names)
    if not arguments.names:
        arguments.names = sorted({one.result for one in quote.QUOTES})  # which are made though they be heavy
    code = harness.run_all(chosen, arguments)
    if not (arguments.anyway or arguments.small):
        for document in [*quote.write(), *scale.write()]:
            print(f"written: {document}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
