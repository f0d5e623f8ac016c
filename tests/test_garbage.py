"""Few collections while a command runs, and none at its end."""

import subprocess
import sys

PROGRAM = """
import gc
from router.garbage import rarely_collected

gc.callbacks.append(lambda phase, about: phase == "start" and print(about["generation"]))

class Cycle:
    def __init__(self):
        self.itself = self
    def __del__(self):
        print("examined")

with rarely_collected():
    kept = [[] for _ in range(50_000)]
    Cycle()
    print("end")
"""


def test_nothing_is_examined_before_a_hundred_thousand_new_objects_nor_at_the_end():
    # Python's own collection of all generations finds nothing to examine.
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, check=True)
    assert done.stdout.decode().split() == ["end", "2"]
