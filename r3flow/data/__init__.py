"""Question sets and corpora: readers of the user's files, and the generated demo world."""
