"""Conversion between all formats that hold runs; building data sets and sessions of them."""
