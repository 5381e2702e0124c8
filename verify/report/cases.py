"""What the names in a case stand for: how tensors lie in memory, and which values x has."""

# Of a tensor of shape (B, S, C), as torch makes it; `new` is torch.empty.
LAYOUT_WORDS = {
    "contiguous": "`new(B, S, C)`",
    "row_strided": "rows with gaps: `new(B, S, C + 3)[..., :C]`, or C + 64",
    "transposed": "dimensions in reverse order: `new(C, S, B).permute(2, 1, 0)`",
    "every_other": "every other element: `new(B, S, 2 * C)[..., ::2]`",
    "offset": "contiguous, from beyond 2^16 elements of its storage on: an odd one, or half a vector of 16 bytes",
    "expanded": "one sample or row, repeated: `new(1, S, C).expand(B, S, C)`",
    "channels_last": "the second dimension is the fastest: `new(B, C, S).transpose(1, 2)`",
    "far": "the last index of the first dimension is beyond 2^31 elements",
    "scalar": "one number, repeated: `new(1, 1, 1).expand(B, S, C)`",
    "expanded_last": "one number of each row, repeated: `new(B, S, 1).expand(B, S, C)`",
    "sequence_slice": "a part of a longer sequence: `new(B, S + 3, C)[:, :S]`",
    "channel_slice": "the same of a tensor in channels_last: `new(B, C, S + 3).transpose(1, 2)[:, :S]`",
    "own": "contiguous, in a storage of exactly its elements, without guards around it",
    "swapped": "sequence first: `new(S, B, C).transpose(0, 1)`",
    "swapped_last": "the last two dimensions swapped: `new(B, C, S).transpose(-2, -1)`",
    "loose": "contiguous, with stride 0 along each dimension of one element",
    "expanded_middle": "one row of each sample, repeated: `new(B, 1, C).expand(B, S, C)`",
    "expanded_inner": "one number of each channel, repeated along all others: `new(B, S, 1).expand(B, S, C)`",
    "inner_slice": "part of the last dimension but one, such as heads of a projection: `new(B, S + 3, C)[..., :S, :]`",
    "heads_first": "of four and more dimensions the second and the third swapped: `new(B, S, H, C).transpose(1, 2)`",
}
DATA_WORDS = {
    "normal": "normally distributed",
    "heavy": "rare values are much larger than the others (Student's t, two degrees of freedom)",
    "channel": "one column or channel is 1000 times larger, for example in large language models",
    "constant": "one value in every row, group or channel: the variance is 0",
    "alternating": "+1, −1, +1, …",
    "integers": "whole numbers from −8 to 8",
    "zero": "0 everywhere",
    "sorted": "normally distributed, in ascending order",
    "ramp": "rises evenly along the row",
    "steps": "rises in steps along the row",
    "uneven": "every row, group or channel has another size and mean",
    "padded": "some rows, groups or channels are −0 everywhere, as padding is; of others a part",
}
CASE = (
    "A case is one call of the kernel. 97×148 is the shape of x; “scale 2^-20” is the size of its values, and "
    "“offset 100” a mean of 100 beside a deviation of 1. Layouts say how a tensor lies in memory. B, S, H and C are "
    "sizes, and new is torch.empty."
)
