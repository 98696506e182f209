"""Eviction: which of the pages that no sequence uses are evicted first."""
