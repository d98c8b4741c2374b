"""Tables: trees that say which rows and columns of stored values make a value, and what is done with them.

`nodes` are the trees, `plan` counts and cuts them, `read` makes their values, `transfers` plans what each task of a
call reads of its lazy arguments. `lazy.table` is a table as a lazy value, `operations` are what a program uses.
"""
