"""What a run needs and will cost, told before it begins: packages, machine, a trial of some
seconds.
"""
