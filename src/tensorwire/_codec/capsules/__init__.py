"""The memory of other packages: Arrow and DLPack."""
