"""The next batch: which finished rows it has, by the order that the stream keeps."""
