"""Which messages a reader wants: tags, SQL expressions, and the bit maps that spare reading."""
