"""A benchmark refuses on a loaded machine, keeps every sample, and runs in fresh processes."""

from __future__ import annotations

import argparse
import itertools
import os
import random

import measured
import pytest
from measured import BENCHMARKS, figures

import harness  # isort: skip - beside figures
import load  # isort: skip
from load import LoadedMachineError, Reading, Watch  # isort: skip


class Machine:
    """A machine of two processors whose clock moves when somebody sleeps or works."""

    def __init__(self, others: float = 0.0, average: float = 0.1) -> None:
        self.others = others
        self.average = average
        self.clock = self.busy = self.own = 0.0

    def sleep(self, seconds: float, own: float = 0.0) -> None:
        self.clock += seconds
        self.own += 2 * seconds * own
        self.busy += 2 * seconds * (self.others + own)

    def read(self) -> Reading:
        return Reading(self.clock, self.busy, self.own, self.average, 2)

    def watch(self, **keywords) -> Watch:
        return Watch(self.read, self.sleep, **keywords)


def test_an_idle_machine_may_measure():
    watch = Machine(others=0.01).watch()
    assert watch.look("before").share == pytest.approx(0.01)
    assert watch.loads == [watch.loads[0]]


def test_a_loaded_machine_is_refused_in_a_sentence_that_says_what_to_do():
    with pytest.raises(LoadedMachineError) as refusal:
        Machine(others=0.4, average=1.5).watch().look("before mining")
    message = str(refusal.value)
    assert message.startswith("before mining, others used 40% of this machine's 2 processors (at most 5% is")
    assert "load average was 1.50" in message
    assert message.endswith("--anyway")


def test_our_own_work_is_not_the_others():
    machine = Machine(others=0.02)
    watch = machine.watch()
    start = machine.read()
    machine.sleep(10, own=0.9)
    assert watch.since(start, "during").share == pytest.approx(0.02)


def test_the_load_average_counts_at_the_first_look_only():
    with pytest.raises(LoadedMachineError):
        Machine(average=2.0).watch().look("before")
    machine = Machine(average=0.1)
    watch = machine.watch()
    watch.look("before")
    machine.average = 2.0  # of our own making
    watch.look("between")


def test_anyway_looks_and_remembers_but_does_not_refuse():
    watch = Machine(others=0.9, average=5).watch(refuse=False)
    watch.look("before")
    assert watch.loads[0].share == pytest.approx(0.9)


def test_the_real_counters_move():
    before = load.read()
    sum(itertools.repeat(1, 3_000_000))
    after = load.read()
    assert after.clock > before.clock
    assert after.busy >= before.busy
    assert after.own >= before.own
    assert after.processors >= 1


class Clock:
    """Moves when a side works."""

    def __init__(self) -> None:
        self.now = 0.0
        self.order: list[str] = []

    def __call__(self) -> float:
        return self.now

    def side(self, name: str, seconds: list[float]):
        left = itertools.cycle(seconds)

        def work() -> None:
            self.order.append(name)
            self.now += next(left)

        return work


def test_sides_take_turns_and_every_sample_after_the_first_round_is_kept():
    clock = Clock()
    sides = {"ours": clock.side("ours", [9, 1, 2, 3]), "PML": clock.side("PML", [90, 10, 20, 30])}
    taken = harness.take_turns(sides, rounds=3, clock=clock)
    assert taken == {"ours": [1000, 2000, 3000], "PML": [10_000, 20_000, 30_000]}
    rounds = [clock.order[start : start + 2] for start in range(0, 8, 2)]
    assert all(sorted(one) == ["PML", "ours"] for one in rounds)


def test_the_order_changes_so_that_nobody_always_follows_the_same_side():
    clock = Clock()
    harness.take_turns({name: clock.side(name, [1]) for name in "abc"}, rounds=40, clock=clock, seed=1)
    followed = set(itertools.pairwise(clock.order))
    assert set(itertools.permutations("abc", 2)) <= followed


def test_the_budget_ends_it_but_not_before_the_least_rounds():
    for budget, expected in ((0.0, 3), (5.0, 4), (100.0, 10)):
        clock = Clock()
        taken = harness.take_turns(
            {"ours": clock.side("ours", [1.0])}, rounds=10, budget=budget, least=3, clock=clock
        )
        assert len(taken["ours"]) == expected


def make_benchmark(**keywords) -> harness.Benchmark:
    return harness.Benchmark("mining", "Mining", "the product", lambda _: [], **keywords)


@pytest.fixture
def processes(monkeypatch):
    """Fresh processes that take ten seconds of an idle machine each and measure random samples."""
    machine = Machine()
    taken: list[list[harness.Taken]] = []
    numbers = random.Random(0)

    def child(benchmark, source, options):
        machine.sleep(10, own=0.5)
        samples = {side: [numbers.random() for _ in range(4)] for side in ("floor", "ours")}
        taken.append([harness.Taken("hard", samples, note="as one")])
        return taken[-1]

    monkeypatch.setattr(harness, "in_fresh_process", child)
    return machine, taken


def test_every_process_is_kept_with_its_raw_samples_and_the_load_is_on_record(processes):
    machine, taken = processes
    result = harness.measure(make_benchmark(), "x.py", harness.Options(), machine.watch())
    assert len(taken) == 3
    for side in ("floor", "ours"):
        kept = result.row("hard").samples[side]
        assert kept == [[pytest.approx(x, rel=1e-3) for x in one[0].samples[side]] for one in taken]
    assert len(result.load["shares"]) == 1 + 2 * 3  # before, then during and after each process
    assert result.stale() is None
    for fact in ("processor", "cores", "threads", "date", "commit", "packages"):
        assert result.conditions[fact]


def test_load_that_comes_between_ends_it(processes):
    machine, taken = processes
    watch = machine.watch()
    machine.others = 0.0

    def read() -> Reading:
        machine.others = 0.3 if len(taken) == 2 else 0.0
        return machine.read()

    watch.read = read
    with pytest.raises(LoadedMachineError, match="process 2 of mining"):
        harness.measure(make_benchmark(), "x.py", harness.Options(), watch)


def test_fewer_than_three_processes_make_no_figure(processes):
    machine, _ = processes
    with pytest.raises(ValueError, match="2 processes are too few for a figure with a range: take 3"):
        harness.measure(make_benchmark(), "x.py", harness.Options(), machine.watch(), processes=2)


def test_too_few_processes_are_told_before_anything_runs(processes, saved, capsys):
    machine, taken = processes
    given = arguments("--processes", "2")
    assert harness.run_all([(make_benchmark(), "x.py")], given, machine.watch()) == harness.REFUSED
    assert taken == []
    assert "--processes 2: a figure needs at least 3" in capsys.readouterr().err


def test_processes_that_measure_different_rows_are_an_error():
    one, other = harness.Taken("a", {"ours": [1.0]}), harness.Taken("b", {"ours": [1.0]})
    with pytest.raises(harness.MeasuringError, match="different rows"):
        harness.merge([[one], [other]])


@pytest.fixture
def saved(monkeypatch, tmp_path):
    """Results go to a temporary folder; the checkout is clean."""
    save = figures.save

    def save_here(result):
        save(result, tmp_path)
        return [harness.ROOT / "benchmarks" / "results" / f"{result.name}.json"]

    monkeypatch.setattr(figures, "save", save_here)
    monkeypatch.setattr(harness, "uncommitted", lambda: "")
    monkeypatch.setattr(harness, "already_made", lambda _: False)
    return tmp_path


def arguments(*given: str) -> argparse.Namespace:
    return harness.parser("").parse_args(given)


def test_on_an_idle_machine_results_are_written(processes, saved, capsys):
    machine, _ = processes
    assert harness.run_all([(make_benchmark(), "x.py")], arguments(), machine.watch()) == 0
    assert figures.load("mining", saved) is not None
    assert "ours ÷ floor" in capsys.readouterr().out


def test_on_a_loaded_machine_nothing_is_written(processes, saved, capsys):
    machine, taken = processes
    machine.others = 0.5
    assert harness.run_all([(make_benchmark(), "x.py")], arguments(), machine.watch()) == harness.REFUSED
    assert list(saved.iterdir()) == []
    assert taken == []
    assert "others used 50%" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--anyway", "--small"])
def test_looking_prints_and_never_writes(processes, saved, capsys, option):
    machine, _ = processes
    machine.others = 0.5
    watch = machine.watch(refuse=False)
    assert harness.run_all([(make_benchmark(), "x.py")], arguments(option), watch) == 0
    assert list(saved.iterdir()) == []
    assert "ours ÷ floor" in capsys.readouterr().out


def test_uncommitted_code_makes_no_figure(processes, saved, monkeypatch, capsys):
    machine, taken = processes
    monkeypatch.setattr(harness, "uncommitted", lambda: " M src/nearkin/losses/triplet.py")
    assert harness.run_all([(make_benchmark(), "x.py")], arguments(), machine.watch()) == harness.REFUSED
    assert taken == []
    assert "triplet.py" in capsys.readouterr().err


def test_code_that_changes_in_the_meantime_makes_no_figure(processes, saved, monkeypatch, capsys):
    machine, taken = processes
    monkeypatch.setattr(harness, "uncommitted", lambda: " M src/nearkin/x.py" if taken else "")
    assert harness.run_all([(make_benchmark(), "x.py")], arguments(), machine.watch()) == harness.REFUSED
    assert len(taken) == 3
    assert list(saved.iterdir()) == []
    monkeypatch.setattr(figures, "digest", lambda name: str(len(taken)))
    with pytest.raises(harness.MeasuringError, match="the checkout changed while it was measured"):
        harness.measure(make_benchmark(), "x.py", harness.Options(), machine.watch())


def test_what_is_missing_heavy_or_made_is_skipped_with_a_reason(processes, saved, monkeypatch, capsys):
    machine, taken = processes
    absent = make_benchmark(missing=lambda _: "it needs ../shared")
    both = [(absent, "x.py"), (make_benchmark(heavy=True), "x.py")]
    assert harness.run_all(both, arguments(), machine.watch()) == 0
    monkeypatch.setattr(harness, "already_made", lambda _: True)
    assert harness.run_all([(make_benchmark(), "x.py")], arguments(), machine.watch()) == 0
    assert taken == []
    said = capsys.readouterr().err
    for reason in (
        "it needs ../shared",
        "it is heavy: --heavy",
        "this machine has measured this code: --again",
    ):
        assert f"mining: skipped, {reason}\n" in said
    assert harness.run_all([(make_benchmark(), "x.py")], arguments("--again"), machine.watch()) == 0
    assert len(taken) == 3


def test_a_result_is_made_already_by_the_same_library_code_and_machine(tmp_path):
    benchmark = make_benchmark()
    assert not harness.already_made(benchmark, tmp_path)
    here = harness.conditions(benchmark)
    one = measured.row("hard", ours=[[1.0]] * 3)
    for conditions, expected in (
        (here, True),
        ({**here, "commit": "another, of documents only"}, True),
        ({**here, "processor": "another"}, False),
        ({**here, "library": "another"}, False),
        ({**here, "packages": {"torch": "another"}}, False),
    ):
        made = measured.result("mining", one)
        made = figures.Result(**{**vars(made), "conditions": conditions})
        figures.save(made, tmp_path)
        assert harness.already_made(benchmark, tmp_path) is expected


CHILD = """
import os
import harness

def measure(options):
    pid = float(os.getpid())
    facts = {"threads": os.environ["OMP_NUM_THREADS"], "process": options.process}
    yield harness.Taken("pid", {"ours": [pid]}, facts=facts)
    if options.small:
        raise SystemExit("the numbers differ by 0.1")

harness.main([harness.Benchmark("mining", "t", "f", measure, threads=1)], __file__, "")
"""


def test_processes_are_fresh_and_have_the_threads_of_the_benchmark(tmp_path, monkeypatch):
    source = tmp_path / "child.py"
    source.write_text(CHILD)
    monkeypatch.setenv("PYTHONPATH", str(BENCHMARKS))
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    benchmark = make_benchmark(threads=1)
    options = harness.Options(folder=str(tmp_path), process=2)
    first, second = (harness.in_fresh_process(benchmark, str(source), options)[0] for _ in range(2))
    assert len({first.samples["ours"][0], second.samples["ours"][0], float(os.getpid())}) == 3
    assert first.facts == {"threads": "1", "process": 2}
    with pytest.raises(
        harness.MeasuringError, match=r"mining failed in its own process:\nthe numbers differ by 0.1"
    ):
        harness.in_fresh_process(benchmark, str(source), harness.Options(small=True, folder=str(tmp_path)))


def test_an_unknown_benchmark_is_told_what_there_is():
    with pytest.raises(SystemExit, match="no benchmark 'minning'; there are mining"):
        harness.chosen([make_benchmark()], ["minning"])
