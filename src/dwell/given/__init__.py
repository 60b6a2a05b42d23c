"""What callers give, checked: single values, and columns of them."""
