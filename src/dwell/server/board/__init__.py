"""The board: what all who look at a server see, found out once for all of them."""
