"""Calls of torch in the forms that networks use, and awkward ones, each with its inputs.

"floor_divide": (lambda x: x // 2, "2x7~-3,3,0.5")     numbers of 2x7 between -3 and 3, in halves
"embedding": (lambda i: .., "i64:2x3~0,9")             whole numbers from 0 to 9
"""
