"""Tool calls: how models write them, how they are found in answers, and how they are forced."""
