"""Compilation with numba: the kernel decorator and its cache, intrinsics, the mixing function."""
