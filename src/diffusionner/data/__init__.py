"""What is done with corpora as such: count, convert, split and check them."""
