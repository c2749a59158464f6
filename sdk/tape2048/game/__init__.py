"""The rules of 2048 on packed boards, and the move between two of them. Every name but `Recovered` loads numba."""
