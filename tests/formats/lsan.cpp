// What the HDF5 library itself loses when a file is corrupt or a disk full is not ours to find.
extern "C" const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() {
  return "leak:libhdf5";
}
