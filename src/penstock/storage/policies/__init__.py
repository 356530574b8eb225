"""Which expert leaves when another needs its room.  A new policy is one small class and one line here."""

from penstock.errors import OptionError
from penstock.storage.policies.hot import Hot
from penstock.storage.policies.lfru import Lfru
from penstock.storage.policies.lfu import Lfu
from penstock.storage.policies.lru import Lru
from penstock.storage.policies.policy import Key, Policy
from penstock.storage.policies.s3fifo import S3Fifo

__all__ = ["POLICIES", "Key", "Policy", "make_policy"]

POLICIES: dict[str, type[Policy]] = {policy.name: policy for policy in (Lru, Lfu, Lfru, S3Fifo, Hot)}


def make_policy(name: str, slots: int) -> Policy:
    """A policy for a cache of about `slots` experts."""
    if name not in POLICIES:
        raise OptionError(f"policy is {name!r}, expected one of {', '.join(POLICIES)}")
    return POLICIES[name](slots)
