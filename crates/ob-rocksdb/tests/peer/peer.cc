// RocksDB itself, as the tests' peer: makes a database by options and a seed, and says what RocksDB answers. For `outboard bench pushdown`, which has it from
// `cargo xtask peers`, it is the writer.
//
// Usage: peer DIRECTORY SEED [NAME=VALUE ...]; then commands on standard input, one a line, each answered by lines and a last one, ".".

#include <rocksdb/convenience.h>
#include <rocksdb/db.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/merge_operator.h>
#include <rocksdb/slice_transform.h>
#include <rocksdb/sst_file_writer.h>
#include <rocksdb/table.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

using namespace rocksdb;

namespace {

std::map<std::string, std::string> arguments;
std::mt19937_64 generator;
std::string directory;
DB* database = nullptr;
std::map<std::string, ColumnFamilyHandle*> families;
std::map<uint64_t, const Snapshot*> snapshots;
std::atomic<bool> churning{false};
std::atomic<uint64_t> churned{0};
std::vector<std::thread> threads;
uint64_t once = 0;
uint64_t files = 0;
std::vector<std::string> written_once;

void check(const Status& status, const char* what) {
  if (!status.ok()) {
    std::cerr << "peer: " << what << ": " << status.ToString() << std::endl;
    std::exit(2);
  }
}

std::string argument(const std::string& name, const std::string& otherwise) {
  auto found = arguments.find(name);
  return found == arguments.end() ? otherwise : found->second;
}

uint64_t number(const std::string& name, uint64_t otherwise) {
  return std::stoull(argument(name, std::to_string(otherwise)));
}

uint64_t below(uint64_t limit) { return generator() % limit; }

std::string hex(const Slice& bytes) { return bytes.empty() ? "-" : bytes.ToString(true); }

// Keys of many lengths, as hashes differ by length.
std::string key_of(uint64_t index) {
  static const size_t lengths[] = {0, 1, 4, 11, 30, 70, 125, 200, 260, 1100};
  char text[16];
  snprintf(text, sizeof text, "k%05llu", static_cast<unsigned long long>(index));
  return std::string(text) + std::string(lengths[index % number("lengths", 10)], static_cast<char>('a' + index % 26));
}

std::string some_key() { return key_of(below(number("keys", 600))); }

std::string some_value() {
  std::string value;
  uint64_t length = below(8) == 0 ? below(900) : below(60);
  char letter = static_cast<char>(below(256));
  while (value.size() < length) {
    value.push_back(below(3) == 0 ? static_cast<char>(below(256)) : letter);
  }
  return value;
}

std::string some_number() {
  uint64_t number = below(1000);
  return std::string(reinterpret_cast<char*>(&number), 8);
}

CompressionType compression() {
  static const std::map<std::string, CompressionType> kinds = {
      {"none", kNoCompression}, {"snappy", kSnappyCompression}, {"lz4", kLZ4Compression},
      {"lz4hc", kLZ4HCCompression}, {"zstd", kZSTD}, {"zlib", kZlibCompression}};
  return kinds.at(argument("compression", "none"));
}

BlockBasedTableOptions table_options() {
  BlockBasedTableOptions table;
  table.format_version = static_cast<uint32_t>(number("format", 5));
  table.block_size = number("block", 512);
  table.block_restart_interval = static_cast<int>(number("restart", 16));
  table.index_block_restart_interval = static_cast<int>(number("index_restart", 1));
  table.enable_index_compression = number("index_compression", 1) != 0;
  table.whole_key_filtering = number("whole_key", 1) != 0;
  static const std::map<std::string, ChecksumType> checksums = {
      {"none", kNoChecksum}, {"crc32c", kCRC32c}, {"xxhash", kxxHash}, {"xxhash64", kxxHash64}, {"xxh3", kXXH3}};
  table.checksum = checksums.at(argument("checksum", "xxh3"));
  if (number("hash_data", 0) != 0) {
    table.data_block_index_type = BlockBasedTableOptions::kDataBlockBinaryAndHash;
  }
  static const std::map<std::string, BlockBasedTableOptions::IndexType> indexes = {
      {"binary", BlockBasedTableOptions::kBinarySearch},
      {"hash", BlockBasedTableOptions::kHashSearch},
      {"two_level", BlockBasedTableOptions::kTwoLevelIndexSearch},
      {"first_key", BlockBasedTableOptions::kBinarySearchWithFirstKey}};
  table.index_type = indexes.at(argument("index", "binary"));
  std::string filter = argument("filter", "none");
  if (filter == "bloom" || filter == "partitioned") {
    table.filter_policy.reset(NewBloomFilterPolicy(10));
  } else if (filter == "ribbon") {
    table.filter_policy.reset(NewRibbonFilterPolicy(10));
  }
  table.partition_filters = filter == "partitioned";
  table.metadata_block_size = 256;
  return table;
}

ColumnFamilyOptions family_options(const std::string& name) {
  ColumnFamilyOptions options;
  options.compression = compression();
  if (number("dictionary", 0) != 0) {
    options.compression_opts.max_dict_bytes = 4096;
    options.compression_opts.zstd_max_train_bytes = 65536;
  }
  options.write_buffer_size = number("buffer", 64 << 10);
  options.target_file_size_base = number("file", 24 << 10);
  options.max_bytes_for_level_base = number("level", 96 << 10);
  options.max_bytes_for_level_multiplier = static_cast<double>(number("multiplier", 3));
  options.level0_file_num_compaction_trigger = 4;
  options.disable_auto_compactions = number("auto", 1) == 0;
  if (argument("index", "") == "hash" || number("whole_key", 1) == 0) {
    options.prefix_extractor.reset(NewCappedPrefixTransform(4));
  }
  options.table_factory.reset(NewBlockBasedTableFactory(table_options()));
  ConfigOptions config;
  std::string merge = name == "sum" ? "uint64add" : name == "text" ? "stringappend" : name == "last" ? "put" : "";
  if (!merge.empty()) {
    check(MergeOperator::CreateFromString(config, merge, &options.merge_operator), "merge operator");
  }
  if (number("blob", 0) != 0) {
    options.enable_blob_files = true;
    options.min_blob_size = 10;
  }
  return options;
}

void open() {
  DBOptions options;
  options.create_if_missing = true;
  options.create_missing_column_families = true;
  options.max_background_jobs = 4;
  options.track_and_verify_wals_in_manifest = number("track", 0) != 0;
  options.recycle_log_file_num = number("recycle", 0);
  options.atomic_flush = number("atomic", 0) != 0;
  options.max_manifest_file_size = number("manifest", 1 << 30);
  options.avoid_flush_during_recovery = true;
  if (options.recycle_log_file_num != 0) {
    options.wal_recovery_mode = WALRecoveryMode::kSkipAnyCorruptedRecords;
  }
  if (number("wal_compression", 0) != 0) {
    options.wal_compression = kZSTD;
  }
  std::set<std::string> names = {"default"};
  if (number("alone", 0) == 0) {
    names.insert({"sum", "text", "last", "churn"});
  }
  std::vector<std::string> listed;
  if (DB::ListColumnFamilies(options, directory, &listed).ok()) {
    names.insert(listed.begin(), listed.end());
  }
  std::vector<ColumnFamilyDescriptor> descriptors;
  for (const auto& name : names) {
    descriptors.emplace_back(name, family_options(name));
  }
  std::vector<ColumnFamilyHandle*> handles;
  check(DB::Open(options, directory, descriptors, &handles, &database), "open");
  for (auto* handle : handles) {
    families[handle->GetName()] = handle;
  }
}

void release_all() {
  for (auto& [sequence, snapshot] : snapshots) {
    database->ReleaseSnapshot(snapshot);
  }
  snapshots.clear();
}

void close() {
  release_all();
  for (auto& [name, handle] : families) {
    check(database->DestroyColumnFamilyHandle(handle), "destroy handle");
  }
  families.clear();
  check(database->Close(), "close");
  delete database;
  database = nullptr;
}

std::string some_family() {
  auto found = families.begin();
  do {
    found = std::next(families.begin(), static_cast<long>(below(families.size())));
  } while (found->first == "churn");
  return found->first;
}

void add_write(WriteBatch& batch) {
  std::string name = some_family();
  auto* family = families[name];
  uint64_t kind = below(100);
  if (name == "default" && kind < 8) {
    // Single deletions are for keys that were written once, and are deleted in no other way.
    if (kind < 5 || written_once.empty()) {
      written_once.push_back("s" + std::to_string(once++));
      check(batch.Put(family, written_once.back(), some_value()), "put");
    } else {
      size_t index = below(written_once.size());
      check(batch.SingleDelete(family, written_once[index]), "single delete");
      written_once.erase(written_once.begin() + static_cast<long>(index));
    }
  } else if (kind < 20) {
    check(batch.Delete(family, some_key()), "delete");
  } else if (kind < 20 + number("ranges", 2)) {
    uint64_t first = below(number("keys", 600));
    check(batch.DeleteRange(family, key_of(first), key_of(first + below(40))), "delete range");
  } else if (kind < 60 && (name == "sum" || name == "text" || name == "last")) {
    check(batch.Merge(family, some_key(), name == "sum" ? some_number() : some_value().substr(0, 20)), "merge");
  } else {
    check(batch.Put(family, some_key(), name == "sum" ? some_number() : some_value()), "put");
  }
  if (below(50) == 0) {
    check(batch.PutLogData("for the log alone"), "log data");
  }
}

void write(uint64_t count, bool has_log) {
  WriteOptions options;
  options.disableWAL = !has_log;
  for (uint64_t done = 0; done < count;) {
    WriteBatch batch;
    for (uint64_t size = below(6) == 0 ? below(40) + 1 : 1; size > 0; --size, ++done) {
      add_write(batch);
    }
    check(database->Write(options, &batch), "write");
  }
  check(database->FlushWAL(number("track", 0) != 0), "flush log");
}

void flush() {
  // With recycled logs this RocksDB (7.8.3) dies when it flushes.
  if (number("flushes", 1) == 0) {
    return;
  }
  std::vector<ColumnFamilyHandle*> all;
  for (auto& [name, handle] : families) {
    if (number("atomic", 0) != 0 || below(3) != 0) {
      all.push_back(handle);
    }
  }
  for (auto* handle : all) {
    check(database->Flush(FlushOptions(), handle), "flush");
  }
}

void flush_all() {
  if (number("flushes", 1) == 0) {
    return;
  }
  for (auto& [name, handle] : families) {
    check(database->Flush(FlushOptions(), handle), "flush");
  }
}

void compact() {
  if (number("flushes", 1) == 0) {
    return;
  }
  for (auto& [name, handle] : families) {
    std::string first = some_key(), last = some_key();
    Slice begin(first), end(last);
    bool is_whole = below(3) == 0;
    CompactRangeOptions options;
    check(database->CompactRange(options, handle, is_whole ? nullptr : &begin, is_whole ? nullptr : &end), "compact");
  }
}

// Takes so many lines with a key and a value as one write.
void batch(uint64_t count) {
  WriteBatch batch;
  for (std::string line; count > 0 && std::getline(std::cin, line); --count) {
    size_t at = line.find(' ');
    check(batch.Put(families["default"], line.substr(0, at), line.substr(at + 1)), "put");
  }
  check(database->Write(WriteOptions(), &batch), "write");
}

// Has all that is in memory and at level 0 at another level, beside what is there.
void settle(uint64_t level) {
  auto* family = families["default"];
  check(database->Flush(FlushOptions(), family), "flush");
  ColumnFamilyMetaData metadata;
  database->GetColumnFamilyMetaData(family, &metadata);
  std::vector<std::string> names;
  for (const auto& file : metadata.levels[0].files) {
    names.push_back(file.name);
  }
  if (level == 0 || names.empty()) {
    return;
  }
  CompactionOptions options;
  options.compression = compression();
  options.output_file_size_limit = number("file", 24 << 10);
  check(database->CompactFiles(options, family, names, static_cast<int>(level)), "settle");
}

// Until RocksDB has nothing left to do by itself.
void rest() {
  static const std::string* busy[] = {&DB::Properties::kMemTableFlushPending, &DB::Properties::kNumRunningFlushes,
                                      &DB::Properties::kCompactionPending, &DB::Properties::kNumRunningCompactions};
  for (uint64_t sum = 1; sum != 0;) {
    sum = 0;
    for (const auto* property : busy) {
      uint64_t value = 0;
      database->GetIntProperty(families["default"], *property, &value);
      sum += value;
    }
    if (sum != 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
}

void ingest() {
  if (number("flushes", 1) == 0) {
    return;
  }
  std::string name = below(2) == 0 ? "default" : "text";
  Options options(DBOptions(), family_options(name));
  SstFileWriter writer(EnvOptions(), options, families[name]);
  std::string path = directory + "/../ingested-" + std::to_string(files++);
  check(writer.Open(path), "open table");
  std::set<std::string> keys;
  for (uint64_t count = below(60) + 1; count > 0; --count) {
    keys.insert(some_key());
  }
  for (const auto& key : keys) {
    switch (below(name == "text" ? 6 : 5)) {
      case 0:
        check(writer.Delete(key), "delete in table");
        break;
      case 5:
        check(writer.Merge(key, "m"), "merge in table");
        break;
      default:
        check(writer.Put(key, some_value()), "put in table");
    }
  }
  if (below(2) == 0) {
    uint64_t first = below(number("keys", 600));
    check(writer.DeleteRange(key_of(first), key_of(first + 1 + below(20))), "delete range in table");
  }
  check(writer.Finish(), "finish table");
  IngestExternalFileOptions ingestion;
  ingestion.write_global_seqno = below(2) == 0;
  ingestion.move_files = true;
  check(database->IngestExternalFile(families[name], {path}, ingestion), "ingest");
}

const Snapshot* some_snapshot() {
  if (snapshots.empty() || below(3) == 0) {
    return nullptr;
  }
  return std::next(snapshots.begin(), static_cast<long>(below(snapshots.size())))->second;
}

std::string said(const Snapshot* snapshot) {
  return snapshot == nullptr ? "now" : std::to_string(snapshot->GetSequenceNumber());
}

std::string wanted_key() {
  switch (below(12)) {
    case 0:
      return "s" + std::to_string(below(once + 1));
    case 1:
      return some_key() + "x";
    case 2:
      return std::string(below(4), static_cast<char>(below(256)));
    default:
      return some_key();
  }
}

void ask_get() {
  std::string family = some_family(), key = wanted_key(), value;
  ReadOptions options;
  options.snapshot = some_snapshot();
  Status status = database->Get(options, families[family], key, &value);
  if (!status.IsNotFound()) {
    check(status, "get");
  }
  std::cout << "get " << hex(family) << ' ' << said(options.snapshot) << ' ' << hex(key) << ' '
            << (status.ok() ? "value " + hex(value) : "none") << '\n';
}

void ask_scan() {
  std::string family = some_family(), lower = wanted_key(), upper = wanted_key(), from = wanted_key();
  ReadOptions options;
  options.snapshot = some_snapshot();
  options.total_order_seek = true;
  Slice lower_bound(lower), upper_bound(upper);
  bool has_lower = below(4) == 0, has_upper = below(4) == 0 && (!has_lower || lower <= upper);
  if (has_lower) {
    options.iterate_lower_bound = &lower_bound;
  }
  if (has_upper) {
    options.iterate_upper_bound = &upper_bound;
  }
  std::unique_ptr<Iterator> iterator(database->NewIterator(options, families[family]));
  std::cout << "scan " << hex(family) << ' ' << said(options.snapshot) << ' ' << (has_lower ? hex(lower) : "none") << ' '
            << (has_upper ? hex(upper) : "none");
  auto show = [&] {
    check(iterator->status(), "iterate");
    if (iterator->Valid()) {
      std::cout << ' ' << hex(iterator->key()) << ' ' << hex(iterator->value());
    } else {
      std::cout << " end";
    }
  };
  switch (below(4)) {
    case 0:
      std::cout << " first";
      iterator->SeekToFirst();
      break;
    case 1:
      std::cout << " last";
      iterator->SeekToLast();
      break;
    case 2:
      std::cout << " seek " << hex(from);
      iterator->Seek(from);
      break;
    default:
      std::cout << " before " << hex(from);
      iterator->SeekForPrev(from);
  }
  show();
  bool is_forward = below(2) == 0;
  for (uint64_t steps = below(60); steps > 0 && iterator->Valid(); --steps) {
    if (below(10) == 0) {
      is_forward = !is_forward;
    }
    std::cout << (is_forward ? " next" : " prev");
    is_forward ? iterator->Next() : iterator->Prev();
    show();
  }
  std::cout << '\n';
}

void ask_all(const std::string& family) {
  ReadOptions options;
  options.total_order_seek = true;
  std::unique_ptr<Iterator> iterator(database->NewIterator(options, families[family]));
  std::cout << "scan " << hex(family) << " now none none first";
  for (iterator->SeekToFirst(); iterator->Valid(); iterator->Next()) {
    std::cout << ' ' << hex(iterator->key()) << ' ' << hex(iterator->value()) << " next";
  }
  check(iterator->status(), "iterate");
  std::cout << " end\n";
}

// Every batch writes the same number to some keys, and one key more than before it deletes: who sees one key sees all of them.
void churn() {
  auto* family = families["churn"];
  std::string padding(200, 'p');
  for (uint64_t round = churned + 1; churning; ++round) {
    WriteBatch batch;
    check(batch.DeleteRange(family, "a", "c"), "churn");
    for (int key = 0; key < 5; ++key) {
      check(batch.Put(family, "b" + std::to_string(key), std::to_string(round)), "churn");
    }
    check(batch.Put(family, "x" + std::to_string(round % 1000), padding), "churn");
    check(database->Write(WriteOptions(), &batch), "churn");
    churned = round;
  }
}

void stir() {
  for (uint64_t round = 0; churning; ++round) {
    check(database->Flush(FlushOptions(), families["churn"]), "flush");
    if (round % 5 == 4) {
      check(database->CompactRange(CompactRangeOptions(), families["churn"], nullptr, nullptr), "compact");
    }
  }
}

void run(const std::string& line) {
  std::istringstream words(line);
  std::string verb, name;
  uint64_t count = 0;
  words >> verb;
  if (verb == "write" || verb == "write_without_log" || verb == "ask" || verb == "batch" || verb == "settle") {
    words >> count;
  } else {
    words >> name;
  }
  if (verb == "write") {
    write(count, true);
  } else if (verb == "write_without_log") {
    write(count, number("flushes", 1) == 0);
    flush_all();
  } else if (verb == "put") {
    std::string key, value;
    words >> key >> value;
    check(database->Put(WriteOptions(), families[name], key, value), "put");
  } else if (verb == "batch") {
    batch(count);
  } else if (verb == "settle") {
    settle(count);
  } else if (verb == "rest") {
    rest();
  } else if (verb == "flush") {
    flush();
  } else if (verb == "flush_all") {
    flush_all();
  } else if (verb == "compact") {
    compact();
  } else if (verb == "ingest") {
    ingest();
  } else if (verb == "snapshot") {
    const Snapshot* snapshot = database->GetSnapshot();
    if (!snapshots.emplace(snapshot->GetSequenceNumber(), snapshot).second) {
      database->ReleaseSnapshot(snapshot);
    }
  } else if (verb == "release") {
    if (!snapshots.empty()) {
      auto found = std::next(snapshots.begin(), static_cast<long>(below(snapshots.size())));
      database->ReleaseSnapshot(found->second);
      snapshots.erase(found);
    }
  } else if (verb == "release_all") {
    release_all();
  } else if (verb == "add") {
    ColumnFamilyHandle* handle = nullptr;
    check(database->CreateColumnFamily(family_options(name), name, &handle), "add");
    families[name] = handle;
  } else if (verb == "drop") {
    check(database->DropColumnFamily(families[name]), "drop");
    check(database->DestroyColumnFamilyHandle(families[name]), "drop");
    families.erase(name);
  } else if (verb == "ask") {
    for (; count > 0; --count) {
      below(4) == 0 ? ask_scan() : ask_get();
    }
  } else if (verb == "ask_all") {
    for (auto& [family, handle] : families) {
      ask_all(family);
    }
  } else if (verb == "churn") {
    churning = true;
    threads.emplace_back(churn);
    threads.emplace_back(stir);
  } else if (verb == "churned") {
    std::cout << churned << '\n';
  } else if (verb == "calm") {
    churning = false;
    for (auto& thread : threads) {
      thread.join();
    }
    threads.clear();
    std::cout << churned << '\n';
  } else if (verb == "close") {
    close();
  } else if (verb == "open") {
    open();
  } else if (verb == "die") {
    _Exit(0);
  } else {
    std::cerr << "peer: no such command: " << line << std::endl;
    std::exit(2);
  }
}

}  // namespace

int main(int count, char** values) {
  if (count < 3) {
    return 2;
  }
  directory = values[1];
  std::ios::sync_with_stdio(false);
  generator.seed(std::stoull(values[2]));
  for (int index = 3; index < count; ++index) {
    std::string pair = values[index];
    size_t at = pair.find('=');
    arguments[pair.substr(0, at)] = pair.substr(at + 1);
  }
  open();
  for (std::string line; std::getline(std::cin, line);) {
    run(line);
    std::cout << '.' << std::endl;
  }
}
