"""Which expert leaves when another needs its room.  A new policy is one small class and one line here."""

from penstock.errors import OptionError
from penstock.experts.policies.hot import Hot
from penstock.experts.policies.lfru import Lfru
from penstock.experts.policies.lfu import Lfu
from penstock.experts.policies.lru import Lru
from penstock.experts.policies.policy import Key, Policy
from penstock.experts.policies.s3fifo import S3Fifo

__all__ = ["POLICIES", "Key", "Policy", "make_policy"]

POLICIES: dict[str, type[Policy]] = {policy.name: policy for policy in (Lru, Lfu, Lfru, S3Fifo, Hot)}


def make_policy(name: str, slots: int) -> Policy:
    """A policy for a cache of about `slots` experts."""
    if name not in POLICIES:
        raise OptionError(f"policy is {name!r}, expected one of {', '.join(POLICIES)}")
    return POLICIES[name](slots)
