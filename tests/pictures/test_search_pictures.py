from __future__ import annotations

from nearkin.pictures.search import SearchHistory, Trial, draw_search

SCALES = {"alpha": "log", "lr": "linear", "optimizer": "choice"}


def history(trials: int, **keywords) -> SearchHistory:
    return SearchHistory(
        [
            Trial(
                number,
                {
                    "alpha": 10.0 ** (number % 7 - 3),
                    "lr": 0.1 * number,
                    "optimizer": ["adam", "sgd"][number % 2],
                },
                score=0.4 + 0.03 * (7 * number % 11),
                done=number % 4 != 3,
            )
            for number in range(trials)
        ],
        SCALES,
        "Recall@1 on validation classes",
        **keywords,
    )


def test_the_pictures_of_a_search_are_the_same_files_each_time(tmp_path):
    shares = {"alpha": 0.6, "lr": 0.3, "optimizer": 0.1}
    files = draw_search(history(12, importances=shares), tmp_path / "a")
    assert [file.name for file in files] == ["history.png", "importance.png", "slices.png"]
    again = draw_search(history(12, importances=shares), tmp_path / "b")
    assert [file.read_bytes() for file in files] == [file.read_bytes() for file in again]


def test_only_what_there_is_is_drawn(tmp_path):
    assert draw_search(history(0), tmp_path) == []
    assert [file.name for file in draw_search(history(1), tmp_path)] == ["history.png", "slices.png"]


def test_a_search_whose_trials_were_all_given_up(tmp_path):
    trials = [Trial(number, {"lr": 0.1}, 0.5, done=False) for number in range(3)]
    given_up = SearchHistory(trials, {"lr": "log"}, "Recall@1")
    assert given_up.best is None
    assert len(draw_search(given_up, tmp_path)) == 2


def test_the_best_trial_came_to_its_end_and_is_the_earlier_of_equals():
    scores = [(0.5, True), (0.9, False), (0.7, True), (0.7, True)]
    trials = [Trial(number, {}, score, done) for number, (score, done) in enumerate(scores)]
    assert SearchHistory(trials, {}, "Recall@1").best == trials[2]
