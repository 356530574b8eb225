"""What is known of a drafter: what its drafts cost and were worth, whether it is asked, and when it is tried again.

Every trial in vain doubles the time to the next one.  The next answer may be of another kind: there it is tried
sooner, unless several trials in a row were in vain.
"""

from typing import Final

from penstock.backend.state import DRAFTS
from penstock.engine.gate import ComputeCosts

MOST: Final = {"mtp": 4, "dspark": 5, "ngram": DRAFTS}  # drafts at a time
AT_ONCE: Final = ("dspark",)  # whose drafts take as long however many are wanted
UNKNOWN: Final = 3  # trials at the beginning, and steps between them
SHORTEST, LONGEST = 96, 1024  # steps between later ones
MOST_IN_VAIN: Final = 8  # trials in a row that count
WARM: Final = 16  # steps before a trial from which on a drafter keeps up
TRIED: Final = 4  # steps of a trial; half of them if their drafts are wrong
ASKED: Final = 12  # times that a drafter was asked, over which it has to have been worth its time
CARRIED: Final = 1.5  # askings in vain: as what earlier answers gained counts for a new one, at most


class Record:
    """What is known of a drafter, whoever it drafts for."""

    def __init__(self, name: str) -> None:
        self.name, self.most = name, MOST[name]
        self.costs = ComputeCosts()  # of drafts, by how many are made in a row
        self.drafted, self.accepted = [0] * self.most, [0] * self.most  # by place after the certain token
        self.open = False  # it promised a gain when it was last looked at
        self.keeps_up = True
        self.idle = 0  # steps since it was last used
        self.trials = 0  # how often it was tried without a promise
        self.in_vain = 0  # trials in a row in which nothing was right, whatever answers they were in
        self.patience = UNKNOWN  # steps until it is tried
        self.trying = self.right = 0  # steps that are left of a trial, and those of it that were right
        self.spent = 0.0  # seconds, of the latest time it was asked
        self.worth = 0.0  # seconds that it saved of late, each time it was asked

    @property
    def due(self) -> bool:
        """Whether it is time to try it again."""
        return not self.trying and self.idle > self.patience

    @property
    def warms_up(self) -> bool:
        """Whether it has to follow the text from now on, to be ready when it is tried."""
        return not self.keeps_up and self.idle > self.patience - WARM

    def turn(self, is_open: bool) -> bool:
        """From now on it is asked, or not.  Says whether it has to follow the text."""
        self.open = is_open
        if is_open:
            self.patience = SHORTEST
        return is_open or self.patience <= WARM

    def saved(self, seconds: float) -> bool:
        """It was asked, and that saved so much, or took so much more than it saved.  Says whether it is to be asked
        again: guesses that nobody takes say nothing about chances, but they take time."""
        self.worth += (seconds - self.worth) / ASKED
        return self.worth >= 0

    def begin_trial(self) -> None:
        self.trials += 1
        self.in_vain = min(self.in_vain + 1, MOST_IN_VAIN)
        self.trying, self.right = TRIED, 0
        self.patience = UNKNOWN if self.trials < UNKNOWN else min(max(SHORTEST, 2 * self.patience), LONGEST)

    def begin_answer(self) -> None:
        """It may be of another kind than those before it: for which nothing was right, or everything."""
        self.patience = min(self.patience, SHORTEST * 2 ** max(0, self.in_vain - UNKNOWN))
        self.worth = min(self.worth, CARRIED * self.spent)

    def took(self, drafts: int, seconds: float) -> None:
        if self.name in AT_ONCE:  # however many are wanted
            self.costs.told(1, seconds)
            self.costs.told(self.most, seconds)
        elif drafts:
            self.costs.told(drafts, seconds)
