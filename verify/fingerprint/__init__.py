"""What a black box really computes, inferred by feeding it crafted numbers: each statement with its evidence."""
