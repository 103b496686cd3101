"""What must not be lost: records in segments, streams, mailboxes, recovery.

Nothing here opens a file or looks at a clock: the journal says what should be written, read and
removed (`requests.py`), and is told what happened.
"""
