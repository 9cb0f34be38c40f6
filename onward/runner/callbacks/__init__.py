"""The callbacks that come with `onward train`, one file each."""
