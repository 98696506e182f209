"""Eviction policies, the learned hit density, and the duel with LRU."""

from __future__ import annotations

import numpy as np

from kvreuse.kv.evict.density import NUM_KINDS, ReuseAges, bucket, kinds_of, new_kind, reuses_of
from kvreuse.kv.evict.duel import FOLLOWER, LRU, POLICY, Duel
from kvreuse.kv.evict.policy import POLICIES, Candidates, hit_density, lru


def test_policies_are_functions_of_the_candidates_alone() -> None:
    pages = Candidates(np.array([3.0, 9.0]), np.array([0.5, 0.25]), np.array([1.0, 4.0]))
    assert lru(pages).tolist() == [-3, -9]
    assert hit_density(pages).tolist() == [0.5, 1.0]
    one = Candidates(9, 0.25, 4.0)
    assert {name: policy(one) for name, policy in POLICIES.items()} == {"lru": -9, "hit-density": 1}


def test_kinds_tell_reuses_depth_and_place() -> None:
    kinds = kinds_of(np.zeros(40, dtype=np.uint8), 40)
    starts = [int(at) for at in np.flatnonzero(np.diff(kinds)) + 1]
    assert starts == [2, 16, 24, 36, 39]
    assert kinds_of(np.full(40, 2, dtype=np.uint8), 40).max() < NUM_KINDS
    assert [reuses_of(int(kind)) for kind in kinds_of(np.array([0, 1, 2]), 3)] == [0, 1, 2]
    assert reuses_of(new_kind(2)) == 2


def test_until_something_is_known_older_pages_are_worth_less() -> None:
    ages = ReuseAges(100)
    worth = ages.hit_density(np.zeros(4, dtype=np.uint8), np.array([1.0, 10.0, 1e3, 1e6]))
    assert (np.diff(worth) < 0).all()


def learned(reused_at: float, ended: int) -> ReuseAges:
    """Kind 0 is reused at one age; kind 12, observed as often, hardly ever."""
    ages = ReuseAges(100)
    ages.reused_all(np.zeros(1000, dtype=np.uint8), np.full(1000, reused_at))
    ages.ended([0] * ended + [12] * 2000, [20_000] * (ended + 2000))
    ages.reused_all(np.full(20, 12, dtype=np.uint8), np.full(20, reused_at))
    assert not ages.renew(5)
    assert ages.renew(10_000)
    return ages


def test_what_is_used_again_is_worth_more_than_what_is_not() -> None:
    ages = learned(reused_at=100, ended=1000)
    young = np.array([50.0, 50.0])
    often, seldom = ages.hit_density(np.array([0, 12], dtype=np.uint8), young)
    assert often > 10 * seldom


def test_the_closer_to_the_age_of_reuse_the_better_and_beyond_it_worthless() -> None:
    ages = learned(reused_at=1000, ended=500)
    worth = ages.hit_density(np.zeros(4, dtype=np.uint8), np.array([1.0, 500.0, 900.0, 3000.0]))
    assert worth[0] < worth[1] < worth[2]
    assert worth[3] < worth[0] / 5
    assert ages.density_of[0][bucket(900)] == worth[2]


def test_a_policy_that_regrets_more_than_lru_loses_and_may_win_again() -> None:
    duel = Duel()

    def play(policy: int, lru_regrets: int) -> list[int]:
        by = [duel.next(4) for _ in range(256)]
        for _ in range(policy):
            duel.regret(POLICY)
        for _ in range(lru_regrets):
            duel.regret(LRU)
        duel.regret(FOLLOWER)
        duel.renew()
        return by

    by = play(20, 20)
    assert (by.count(POLICY), by.count(LRU)) == (2, 2)
    assert not duel.lru_wins
    play(400, 10)
    assert duel.lru_wins
    for _ in range(20):
        play(10, 30)
    assert not duel.lru_wins


def test_few_regrets_decide_nothing() -> None:
    duel = Duel()
    for _ in range(256):
        duel.next(1)
    for _ in range(20):
        duel.regret(POLICY)
    duel.renew()
    assert not duel.lru_wins
