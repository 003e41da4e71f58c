"""Dead letters: messages whose last attempt failed, listed, exported and sent again."""
