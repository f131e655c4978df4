from __future__ import annotations

import os
import pty
import re
import subprocess
import sys

CODE = """
import time, torch
from nearkin.display import observer_for
display = observer_for(True)
display.stage("checking images")
for done in range(10):
    time.sleep(0.1)
    display.progress(done, 10)
display.note("2 images [of all] are not read")
display.begin(epochs=2, batches=4, epoch=0, batch=0)
for epoch in range(2):
    for batch in range(1, 5):
        time.sleep(0.15)
        display.step(epoch=epoch, batch=batch, images=30, loss=torch.tensor(2.5))
    if epoch == 0:
        display.warning("the loss does not fall [at all]")
    display.progress(3, 7)
    display.epoch_end({"epoch": epoch + 1, "lr": 0.1, "loss": 2.5, "recall_at_1": 0.5})
display.end()
display.stage("scoring the test classes")
display.end()
print("done")
"""


def in_terminal(code: str, **environment: str) -> str:
    """What a script writes to a terminal of 120 columns."""
    ours, theirs = pty.openpty()
    surroundings = os.environ | {"TERM": "xterm-256color", "COLUMNS": "120"} | environment
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=theirs, stderr=theirs, env=surroundings
    ) as one:
        os.close(theirs)
        written = b""
        try:
            while part := os.read(ours, 65536):
                written += part
        except OSError:  # Linux says the end of a terminal so
            pass
        assert one.wait() == 0
    os.close(ours)
    return written.decode()


def without_escapes(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def test_a_terminal_gets_a_live_line_and_keeps_the_epochs():
    written = in_terminal(CODE)
    assert "\x1b[2K" in written  # lines are drawn again
    text = without_escapes(written)
    for part in (
        "checking images …",
        "epoch  1/2  loss 2.5000  Recall@1 50.00",
        "epoch  2/2  loss 2.5000  Recall@1 50.00",
        "samples/s",
        "left",
        "warning: the loss does not fall [at all]",
        "note: 2 images [of all] are not read",
        "scoring the test classes …",
        "done",
    ):
        assert part in text
    assert re.search(r"checking images ━+.* [3-9]/10", text)
    # The live line is gone in the end, and the cursor is back.
    assert text.rstrip().endswith("done")
    assert written.count("\x1b[?25l") == written.count("\x1b[?25h")


def test_a_dumb_terminal_gets_lines():
    written = in_terminal(CODE, TERM="dumb")
    assert "\x1b" not in written
    assert "epoch  1/2  loss 2.5000  Recall@1 50.00" in written
