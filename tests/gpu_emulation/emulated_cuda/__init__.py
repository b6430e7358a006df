"""An emulated CUDA device for builds of PyTorch without CUDA; see the README of the folder
above.
"""
