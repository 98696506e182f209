"""Dialects: the APIs in which clients may ask for answers, one file each."""
