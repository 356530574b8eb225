"""Measuring: how fast a model runs, where the time goes, and how near that is to what memory allows."""
