"""Leave out padded tokens and ignored labels of a training step, where that is exact.

options.py           Sparsity: what is left out
leave_out_rows.py    the pass: finds the mask and the labels, packs, reports
trial_sizes.py       sizes and contents of values for one size of the batch
row_axes.py          where a value has its tokens, followed through the operators
attention_sites.py   attention, and whether its mask hides padding
unread_rows.py       which values are not read at padded tokens, up to the loss
pack_rows.py         rewrite the nodes that work token by token
"""
