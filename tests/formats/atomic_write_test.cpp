#include "formats/atomic_write.h"
#include "formats/pending_directory.h"
#include "formats/temporaries.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <set>

#include "formats/mapped_file.h"
#include "tests/formats/malformed.h"

namespace oscar {
namespace {

size_t entries(const test::TempDir& folder) {
  return static_cast<size_t>(
      std::distance(test::fs::directory_iterator(folder.path()), test::fs::directory_iterator()));
}

TEST(AtomicWrite, ReplacesTheFileOnCommitOnly) {
  test::TempDir folder;
  write_file(folder / "f", std::string_view("old"));
  {
    AtomicFile file(folder / "f");
    EXPECT_EQ(file.path().parent_path(), folder.path());
    test::write(file.path(), "new");
    EXPECT_EQ(test::read(folder / "f"), "old");
    file.commit();
  }
  EXPECT_EQ(test::read(folder / "f"), "new");
  EXPECT_EQ(entries(folder), 1u);
}
TEST(AtomicWrite, LeavesNothingWithoutCommit) {
  test::TempDir folder;
  { AtomicFile file(folder / "f"); }
  try {
    AtomicFile file(folder / "f");
    throw std::runtime_error("a fault");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(entries(folder), 0u);
}
TEST(AtomicWrite, InterruptedProcessesCleanUp) {
  test::TempDir folder;
  AtomicFile first(folder / "f"), second(folder / "f");
  EXPECT_EQ(entries(folder), 2u);
  remove_temporaries();
  EXPECT_EQ(entries(folder), 0u);
}
TEST(AtomicWrite, ChildrenLeaveTheirParentsFilesAlone) {
  test::TempDir folder;
  AtomicFile file(folder / "f");
  const auto run = [] {
    remove_temporaries();
    std::exit(0);
  };
  EXPECT_EXIT(run(), ::testing::ExitedWithCode(0), "");
  EXPECT_TRUE(test::fs::exists(file.path()));
}
TEST(AtomicWrite, ObeysTheUmask) {
  test::TempDir folder;
  const auto old = umask(027);
  write_file(folder / "f", std::string_view("x"));
  umask(old);
  struct stat status {};
  ASSERT_EQ(stat((folder / "f").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0640u);
}
TEST(AtomicWrite, FollowsALink) {
  test::TempDir folder;
  test::write(folder / "target", "old");
  test::fs::create_symlink("target", folder / "link");
  write_file(folder / "link", std::string_view("new"));
  EXPECT_TRUE(test::fs::is_symlink(folder / "link"));
  EXPECT_EQ(test::read(folder / "target"), "new");
}
TEST(AtomicWrite, LongNamesFit) {
  test::TempDir folder;
  write_file(folder / std::string(250, 'n'), std::string_view("x"));
  EXPECT_EQ(entries(folder), 1u);
}
TEST(AtomicWrite, ImpossibleDestinationsAreTheCallersFault) {
  test::TempDir folder;
  EXPECT_COMPLAINT(AtomicFile(folder / "no/such/f"), "No such file or directory");
  EXPECT_COMPLAINT(AtomicFile(folder.path()), "directory");
  test::write(folder / "f", "");
  EXPECT_COMPLAINT(AtomicFile(folder / "f/g"), "Not a directory");
  EXPECT_COMPLAINT(AtomicFile("/dev/null"), "regular file");
}
TEST(AtomicWrite, DevicesAreWrittenThrough) {
  write_file("/dev/null", std::string_view("x"));
  EXPECT_REFUSED(write_file("/dev/full", std::string_view("x")),
                 "/dev/full: cannot write: No space left on device");
}
TEST(AtomicWrite, AFullDiskIsReportedAndLeavesNothing) {
  test::TempDir folder;
  const auto run = [&] {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{4096, 4096};
    setrlimit(RLIMIT_FSIZE, &limit);
    const auto message = test::refusal([&] { write_file(folder / "f", std::string(10000, 'x')); });
    std::exit(test::contains(message, "File too large") ? 0 : 1);
  };
  EXPECT_EXIT(run(), ::testing::ExitedWithCode(0), "");
  EXPECT_EQ(entries(folder), 0u);
}

TEST(ReadText, ReadsUpToItsLimit) {
  test::TempDir folder;
  test::write(folder / "f", "12345");
  EXPECT_EQ(read_text(folder / "f", 5), "12345");
  EXPECT_COMPLAINT(read_text(folder / "f", 4), "limit of 4 bytes");
  EXPECT_COMPLAINT(read_text(folder / "missing"), "No such file");
  EXPECT_COMPLAINT(read_text(folder.path()), "directory");
}
TEST(MakeDirectory, MakesParentsAndRefusesFiles) {
  test::TempDir folder;
  make_directory(folder / "a/b/c");
  make_directory(folder / "a/b/c");
  EXPECT_TRUE(test::fs::is_directory(folder / "a/b/c"));
  test::write(folder / "f", "");
  EXPECT_COMPLAINT(make_directory(folder / "f"), "found a file");
  EXPECT_COMPLAINT(make_directory(folder / "f/g"), "f/g");
}
TEST(MappedFile, SaysWhatIsWrongWithThePath) {
  test::TempDir folder;
  EXPECT_COMPLAINT(MappedFile::open(folder / "missing"), "No such file");
  EXPECT_COMPLAINT(MappedFile::open(folder.path()), "found a directory");
  EXPECT_COMPLAINT(MappedFile::open("/dev/null"), "regular file");
  test::write(folder / "empty", "");
  EXPECT_TRUE(MappedFile::open(folder / "empty")->bytes().empty());
  test::write(folder / "f", std::string(100000, 'x'));
  const auto file = MappedFile::open(folder / "f");
  file->forget(file->bytes());
  EXPECT_EQ(file->bytes()[99999], std::byte{'x'});
}

// In a child: the handler of a program ends it, and must not while files are being put in place.
TEST(AtomicWrite, InterruptsWaitUntilTheResultIsWhole) {
  const test::TempDir folder;
  const pid_t pid = fork();
  if (pid == 0) {
    signal(SIGINT, [](int) { _exit(130); });
    {
      const HoldInterrupts until_whole;
      raise(SIGINT);
      write_file(folder / "a", std::string_view("first"));
      write_file(folder / "b", std::string_view("second"));
    }
    _exit(0);  // not reached: the signal was held, not lost
  }
  int status = 0;
  waitpid(pid, &status, 0);
  EXPECT_EQ(130, WEXITSTATUS(status));
  EXPECT_TRUE(std::filesystem::exists(folder / "a") && std::filesystem::exists(folder / "b"));
}

TEST(PendingDirectory, AppearsWholeOrNotAtAll) {
  test::TempDir folder;
  const auto names = [&] {
    std::set<std::string> found;
    for (const auto& entry : test::fs::directory_iterator(folder.path()))
      found.insert(entry.path().filename().string());
    return found;
  };
  {
    PendingDirectory pending(folder / "out");
    test::write(pending.path() / "a", "1");
    EXPECT_FALSE(names().contains("out"));
  }
  EXPECT_TRUE(names().empty()) << "an abandoned directory is removed";
  {
    PendingDirectory pending(folder / "out");
    test::write(pending.path() / "a", "1");
    pending.publish();
  }
  EXPECT_EQ(names(), (std::set<std::string>{"out"}));
  EXPECT_EQ(test::read(folder / "out" / "a"), "1");
  EXPECT_COMPLAINT(PendingDirectory(folder / "out"), "new or an empty directory");
  test::write(folder / "file", "");
  EXPECT_COMPLAINT(PendingDirectory(folder / "file"), "new or an empty directory");
}
// What the handler of an interruption calls: a checkpoint of many gigabytes must not stay half-written.
TEST(PendingDirectory, ASignalRemovesItWithItsFiles) {
  test::TempDir folder;
  const pid_t child = fork();
  if (child == 0) {
    PendingDirectory pending(folder / "out");
    for (int i = 0; i < 300; ++i)
      test::write(pending.path() / ("a file with a name of some length " + std::to_string(i)), "1");
    remove_temporaries();
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(test::fs::is_empty(folder.path()));
}

}  // namespace
}  // namespace oscar
