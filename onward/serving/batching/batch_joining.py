"""Which waiting requests are joined: all, those of equal lengths, or none, learned from runs.

Pure: there is no clock; seconds of runs are given.

joining = LearnedJoining((JoinRule.ALONE, JoinRule.ALL))
rule = joining.take()                     # the rule of a batch that had more than one request
joining.observe(rule, elements, seconds)  # it ran: True if another rule is kept from now on
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import IntEnum

_FIRST_PAUSE = 32  # batches between two trials, at first and after each change
_LONGEST_PAUSE = 1024
_FEWEST_RUNS = 6  # of each rule in a trial
_MOST_RUNS = 64
_CERTAIN = 3.0  # standard errors between a gain and the one that is needed: no more runs
_KEEP_GAIN = 1.1  # joining is given up if it is not so many times as fast
_JOIN_GAIN = 1.2  # and taken up again if it is
_MOST_TIMES = 8.0  # a run that takes longer than so many times what is expected counts as this
_HANDOVER = 1e-4  # seconds that a batch costs outside of its run


class JoinRule(IntEnum):
    """What a batch is made of, if several requests wait."""

    ALONE = 0  # one request
    EQUAL = 1  # requests of equal lengths: nothing is padded
    ALL = 2  # all that can be joined


class FixedJoining:
    """Join all requests that can be joined."""

    kept = next_rule = JoinRule.ALL

    def take(self) -> JoinRule:
        """The rule of a batch that is formed now."""
        return JoinRule.ALL

    def observe(self, rule: JoinRule, elements: int, seconds: float) -> bool:
        """Learns nothing."""
        return False

    def explain(self) -> str:
        """The rule, in words."""
        return "requests are always joined"


class RuleRuns:
    """The runs of one rule in a trial: seconds in all for each element in all."""

    def __init__(self) -> None:
        self.count = 0
        self._x = self._y = self._xx = self._xy = self._yy = 0.0

    def add(self, elements: int, seconds: float) -> None:
        """Count a run. One that was interrupted by something else must not decide."""
        if self.count >= _FEWEST_RUNS:
            seconds = min(seconds, _MOST_TIMES * self.per_element * elements)
        self.count += 1
        self._x += elements
        self._y += seconds
        self._xx += elements * elements
        self._xy += elements * seconds
        self._yy += seconds * seconds

    @property
    def per_element(self) -> float:
        """Seconds for an element that a client sent; padding is none."""
        return self._y / self._x

    @property
    def relative_error(self) -> float:
        """The standard error of `per_element`, as a share of it."""
        r = self.per_element
        squares = self._yy - 2 * r * self._xy + r * r * self._xx
        return math.sqrt(max(squares, 0.0) * self.count / (self.count - 1)) / self._y


class LearnedJoining:
    """Join only where it makes an element faster, found out by trials now and then.

    A trial takes the rules in turn for some batches, until their seconds for an element differ
    clearly from what is needed to change the rule, or are found to be about the same. Only batches
    that were formed while several requests waited count: those of a rule and those of another then
    ran under the same load. The pause to the next trial doubles as long as the rule stays.
    """

    def __init__(self, rules: Sequence[JoinRule]) -> None:
        self._rules = sorted(rules)
        self.kept = self._rules[-1]
        self.gain = math.nan  # of the rule that joins most over the one that joins least
        self._pause = self._left = _FIRST_PAUSE  # batches until the next trial
        self._trial: dict[JoinRule, RuleRuns] | None = None
        self._turn = 0  # batches that were formed in this trial

    @property
    def next_rule(self) -> JoinRule:
        """The rule for the next batch."""
        if self._trial is None:
            return self.kept
        return self._rules[self._turn % len(self._rules)]

    def take(self) -> JoinRule:
        """The rule of a batch that is formed now, of more than one waiting request."""
        rule = self.next_rule
        if self._trial is not None:
            self._turn += 1
            if self._turn > 2 * _MOST_RUNS * len(self._rules):  # its runs fail
                self._end_trial(self.kept)
            return rule
        self._left -= 1
        if self._left <= 0:
            self._trial, self._turn = {each: RuleRuns() for each in self._rules}, 0
        return rule

    def observe(self, rule: JoinRule, elements: int, seconds: float) -> bool:
        """Learn from a run of these elements; True if another rule is kept from now on."""
        if self._trial is None or not elements:
            return False
        self._trial[rule].add(elements, seconds + _HANDOVER)
        best = self._best_rule(self._trial)
        if best is None:
            return False
        before = self.kept
        least, most = self._trial[self._rules[0]], self._trial[self._rules[-1]]
        self.gain = least.per_element / most.per_element
        self._end_trial(best)
        return best != before

    def explain(self) -> str:
        """The rule, and why, in words."""
        what = {
            JoinRule.ALONE: "each runs alone",
            JoinRule.EQUAL: "those of equal lengths are joined",
            JoinRule.ALL: "all are joined",
        }
        return (
            f"joined requests take {1 / self.gain:.2f} times as long for each element as alone: "
            f"from now on {what[self.kept]}"
        )

    def _best_rule(self, trial: dict[JoinRule, RuleRuns]) -> JoinRule | None:
        """The rule that joins least, unless joining more pays; None: more runs are needed."""
        if any(runs.count < _FEWEST_RUNS for runs in trial.values()):
            return None
        is_over = all(runs.count >= _MOST_RUNS for runs in trial.values())
        for rule in reversed(self._rules):
            pays = [self._pays(rule, less, trial, is_over) for less in self._rules if less < rule]
            if False not in pays:
                return None if None in pays else rule
        return None

    def _pays(
        self, rule: JoinRule, less: JoinRule, trial: dict[JoinRule, RuleRuns], is_over: bool
    ) -> bool | None:
        """Whether a rule is that much faster than one that joins less; None: not certain."""
        one, other = trial[rule], trial[less]
        gain = math.log(other.per_element / one.per_element)
        needed = math.log(_KEEP_GAIN if rule <= self.kept else _JOIN_GAIN)
        error = math.hypot(one.relative_error, other.relative_error)
        if abs(gain - needed) < _CERTAIN * error and not is_over:
            return None
        return gain > needed

    def _end_trial(self, best: JoinRule) -> None:
        self._pause = _FIRST_PAUSE if best != self.kept else min(2 * self._pause, _LONGEST_PAUSE)
        self._trial, self._left, self.kept = None, self._pause, best
