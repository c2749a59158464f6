"""Stores: sessions in object stores (s3://, gs://, az://, hf://), and their local cache.

Addresses and published sessions come in. Verified files come out, and sessions whose rows are fetched when
they are needed. Other packages import it only when a path is an address. Open ``objects.py`` for one
object, ``remote.py`` for sessions.
"""
