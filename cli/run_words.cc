#include "run_words.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <system_error>

#include "base/cores.h"
#include "launch/allocation.h"
#include "launch/exports.h"
#include "launch/gpus.h"
#include "launch/slots.h"
#include "tutti/error.h"

namespace tutti::cli {
namespace {

/// Words of others that change nothing here.
struct Meaningless {
  const char* names;
  int values;
  const char* why;
};
constexpr Meaningless kMeaningless[] = {
    {"--mca,--gmca", 2, "Tutti has no components to choose from"},
    {"--rdzv-conf", 1, "the ranks of a job meet at its own store"},
    {"--local-addr", 1, "the ranks of a host meet at an abstract socket"},
    {"--monitor-interval", 1, "an end is noticed when it happens"},
    {"--start-method", 1, "ranks are programs of their own"},
    {"--event-log-handler", 1, "there are no events to log"},
    {"--allow-run-as-root", 0, "root may"},
    {"--use-env", 0, "ranks are told by variables always"},
    {"--display-map", 0, "--dry-run shows it"},
    {"--display-allocation", 0, "--dry-run shows it"},
    {"--nooversubscribe", 0, "-H and --hostfile are kept to without --oversubscribe"},
    {"--use-hwthread-cpus", 0, "each hardware thread counts as a core"},
    {"--rank-by", 1, "ranks are numbered as --map-by places them"},
    {"--prefix", 1, "tutti run starts nothing but the program"},
    {"--quiet,-q", 0, "a job that ends well is not spoken of"},
    {"--signals-to-handle", 1, "all that may be handed on are"},
    {"--log-line-prefix-template", 1, "lines begin with [rank]; see --tag-output"},
};

/// Words of others that ask for what there is not.
struct Refused {
  const char* names;
  int values;
  const char* why;
};
constexpr Refused kRefused[] = {
    {"--run-path", 0, "name the script itself: tutti run -n 2 script.py"},
    {"--virtual-local-rank", 0, "give --gpus-per-rank 1: each rank sees one GPU, as device 0"},
    {"--launcher", 1, "tutti run starts ranks on this host only"},
    {"--nolocal", 0, "tutti run starts ranks on this host only"},
    {"--npersocket", 1, "give the number of ranks, and --map-by numa"},
    {"--rankfile,--rf", 1, "--bind-to and --map-by place the ranks"},
    {"--cpu-set,--cpu-list", 1, "let taskset choose: taskset -c 0-3 tutti run ..."},
    {"--numa-binding", 1,
     "ranks are bound by their number, not by their GPU; give --bind-to numa --map-by numa"},
    {"--duplicate-stdout-filters", 1, "keep all with --tee 1, and search the files"},
    {"--duplicate-stderr-filters", 1, "keep all with --tee 2, and search the files"},
    {"--logs-specs", 1, "it names a class of Python; see --log-dir, --tee and --redirects"},
    {"--timestamp-output", 0, "let ts write the time: tutti run ... | ts"},
    {"--print-completion", 1, "tutti completion bash, zsh or fish prints it"},
    {"--app", 1, "all ranks run one program; a script may look at RANK"},
    {"--version,-V", 0, "tutti --version says it"},
    {"--tune,--am", 1, "it names a file; give variables by -x, Tutti has no components"},
    {"--env,--genv", 2, "give -x NAME=VALUE"},
    {"--cpus-per-rank,--cpus-per-proc", 1,
     "a rank is bound to a core, to those of a NUMA node or not at all: give --bind-to core, numa "
     "or none"},
    {"--ppr", 1, "give the number of ranks, and --map-by numa to deal them out to NUMA nodes"},
    {"--merge-stderr-to-stdout", 0, "let the shell do it: tutti run ... 2>&1"},
};

/// "--quiet" of "--quiet,-q".
std::string first_of(std::string_view names) {
  return std::string(names.substr(0, names.find(',')));
}

/// The last group of the help.
constexpr const char* kOthers = "Others";

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, message);
}

std::chrono::milliseconds milliseconds_of(std::chrono::nanoseconds span) {
  constexpr std::chrono::nanoseconds kLongest = std::chrono::hours(24 * 365 * 10);
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::min(span, kLongest));
}

std::chrono::milliseconds duration_of(const std::string& option, const std::string& text) {
  return milliseconds_of(parse_duration(option, text));
}

/// Where files go for which no folder is named: one that is there. `way_out` learns of TMPDIR.
std::string temporary_folder(const Environment& environment, std::string& way_out) {
  const auto variable = environment.find("TMPDIR");
  if (variable == environment.end() || variable->second.empty()) return "/tmp";
  const std::string& folder = variable->second;
  way_out = fmt::format("TMPDIR is {}; {}", folder, way_out);
  std::error_code why;
  if (std::filesystem::is_directory(folder, why)) return folder;
  refuse(fmt::format("cannot keep what ranks print in {}: {}; {}", folder,
                     why ? why.message() : "it is no folder", way_out));
}

/// The setting of that name, which the ranks get as well.
std::chrono::milliseconds failure_grace_of(const std::string& option, const std::string& text,
                                           Environment& environment) {
  if (!text.empty()) {
    environment["TUTTI_FAILURE_GRACE"] = fmt::format("{}ms", duration_of(option, text).count());
  }
  return milliseconds_of(Config({}, environment).duration(Setting::failure_grace));
}

/// "host:29500" and "[::1]:29500" without the port.
std::string host_of(const std::string& endpoint) {
  const std::size_t closing = endpoint.find(']');
  return endpoint.substr(0, endpoint.find(':', closing == endpoint.npos ? 0 : closing));
}

/// torchrun's variable for an option: "nproc-per-node" -> "PET_NPROC_PER_NODE".
std::string pet_name(const std::string& option) {
  std::string name = "PET_" + option;
  for (char& letter : name) {
    letter =
        letter == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
  }
  return name;
}

int number_of(const std::string& name, const std::string& text, int least, int most) {
  const bool is_short = !text.empty() && text.size() <= 6;
  const bool is_number = is_short && text.find_first_not_of("0123456789") == text.npos;
  const int number = is_number ? std::stoi(text) : -1;
  if (number < least || number > most) {
    refuse(fmt::format("{} {}: give a number from {} to {}", name, text, least, most));
  }
  return number;
}

}  // namespace

// ---- Which there are

RunWords::RunWords() : app_(std::make_unique<CLI::App>("", "tutti run")) {
  app_->set_help_flag("-h,--help", "this text")->group(kOthers);
  declare_ranks();
  declare_meeting();
  declare_program();
  declare_output();
  declare_endings();
  declare_others();
}

void RunWords::declare_ranks() {
  const char* const group = "Ranks and hosts";
  app_->add_option("-n,-N,-c,--np,--nproc-per-node,--npernode", count_,
                   "number of ranks, one per core, or one per GPU; if not given, the tasks of "
                   "Slurm's allocation, else 1")
      ->type_name("N|auto|cpu|gpu")
      ->group(group);
  app_->add_flag("--pernode", one_a_host_, "one rank on each host")->group(group);
  app_->add_option("-H,--host", hosts_, "hosts and how many ranks each takes, as in a:2,b:2")
      ->type_name("HOSTS")
      ->group(group);
  app_->add_option("--hostfile,--machinefile", hostfile_, "the same in lines of a file: a slots=2")
      ->type_name("FILE")
      ->group(group);
  app_->add_flag("--oversubscribe", oversubscribe_, "more ranks than these hosts take")
      ->group(group);
  app_->add_option("--nnodes", nnodes_, "number of hosts: 1")->type_name("N")->group(group);
  app_->add_option("--node-rank", node_rank_, "which of them this one is: 0")
      ->type_name("N")
      ->group(group);
  app_->add_option("--bind-to", bind_to_, "a rank may use all cores, one core, or those of a node")
      ->type_name("none|core|numa")
      ->group(group);
  app_->add_option("--map-by", map_by_,
                   "which: neighbours side by side (slot; core and node mean the same on one "
                   "host), or dealt out to the NUMA nodes in turn")
      ->type_name("slot|core|node|numa")
      ->group(group);
  app_->add_option("--gpus-per-rank", gpus_per_rank_,
                   "each rank sees its own N of the GPUs, by CUDA_VISIBLE_DEVICES, as devices 0 to "
                   "N-1; else each sees all, and takes the one of its LOCAL_RANK")
      ->type_name("N")
      ->group(group);
  app_->add_flag("--report-bindings", reports_bindings_, "say where each rank is")->group(group);
  app_->add_flag("--dry-run", dry_run_,
                 "print rank -> host -> cores and the command; start nothing")
      ->group(group);
}

void RunWords::declare_meeting() {
  const char* const group = "Where they meet (nothing is needed)";
  app_->add_flag("--standalone", standalone_, "on this host alone")->group(group);
  app_->add_option("--master-addr", master_address_, "MASTER_ADDR for the ranks: this host")
      ->type_name("HOST")
      ->group(group);
  app_->add_option("--master-port", master_port_, "MASTER_PORT for the ranks")
      ->type_name("PORT")
      ->group(group);
  app_->add_option("--rdzv-backend", rdzv_backend_, "both mean tutti run's own store")
      ->type_name("static|c10d")
      ->group(group);
  app_->add_option("--rdzv-endpoint", rdzv_endpoint_, "this host")->type_name("HOST")->group(group);
  app_->add_option("--rdzv-id", rdzv_id_, "a name for the job")->type_name("NAME")->group(group);
  app_->add_option("--role", role_, "ROLE_NAME for the ranks (default)")
      ->type_name("NAME")
      ->group(group);
}

void RunWords::declare_program() {
  const char* const group = "The program";
  app_->add_flag("-m,--module", module_, "PROGRAM is a module of Python: python3 -u -m PROGRAM")
      ->group(group);
  app_->add_flag("--no-python", no_python_, "start PROGRAM as it is, also if its name ends in .py")
      ->group(group);
  app_->add_option("-x", exports_,
                   "a variable for the ranks; what is set here they get anyway (repeatable)")
      ->type_name("NAME[=VALUE]")
      ->take_all()
      ->expected(1)
      ->group(group);
  app_->add_option("--wdir,--wd", folder_,
                   "where the ranks start; PROGRAM is looked for from there")
      ->type_name("FOLDER")
      ->group(group);
}

void RunWords::declare_output() {
  const char* const group = "What they print";
  app_->add_flag("--tag-output", tag_output_, "say before each line of which stream it is")
      ->group(group);
  app_->add_flag("--fold-output", fold_output_,
                 "show a line that several ranks print once, with their numbers")
      ->group(group);
  app_->add_option("--local-ranks-filter", shown_ranks_, "show these ranks only, as in 0,2-3")
      ->type_name("RANKS")
      ->group(group);
  app_->add_option("-r,--redirects", redirects_,
                   "keep in files instead: 1 stdout, 2 stderr, 3 both, or RANK:N,...")
      ->type_name("N")
      ->group(group);
  app_->add_option("-t,--tee", tee_, "keep in files as well: the same numbers")
      ->type_name("N")
      ->group(group);
  app_->add_option("--log-dir", log_folder_,
                   "where: FOLDER/ID_RANDOM/attempt_0/RANK/stdout.log; alone it means -t 3")
      ->type_name("FOLDER")
      ->group(group);
  app_->add_option("--output-filename", output_folder_,
                   "keep all in files as well, named as by mpirun: FOLDER/1/rank.RANK/stdout")
      ->type_name("FOLDER")
      ->group(group);
}

void RunWords::declare_endings() {
  const char* const group = "How it ends";
  app_->add_option("--grace,--shutdown-timeout", grace_,
                   "from a request to end until SIGKILL (30s)")
      ->type_name("TIME")
      ->group(group);
  app_->add_option("--failure-grace", failure_grace_,
                   "what others have to end well after a rank failed (5s, or TUTTI_FAILURE_GRACE)")
      ->type_name("TIME")
      ->group(group);
  app_->add_option("--max-restarts", max_restarts_,
                   "start all ranks again after a failure, so many times (0); they find "
                   "TORCHELASTIC_RESTART_COUNT")
      ->type_name("N")
      ->group(group);
  app_->add_option("--timeout", timeout_, "end the job after this time (never)")
      ->type_name("TIME")
      ->group(group);
}

/// They stand in no group: the help names those that change nothing in a line.
void RunWords::declare_others() {
  const auto declare = [&](const char* names, int values) {
    if (values == 0) {
      app_->add_flag(names)->group("");
    } else {
      app_->add_option(names)->expected(values)->take_all()->group("");
    }
  };
  app_->add_option("--stdin", reader_of_stdin_)->group("");
  for (const Meaningless& word : kMeaningless) declare(word.names, word.values);
  for (const Refused& word : kRefused) declare(word.names, word.values);
}

RunWords::~RunWords() = default;

std::string RunWords::meaningless() {
  std::string names;
  for (const Meaningless& word : kMeaningless) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", first_of(word.names));
  }
  return names;
}

namespace {

int values_of(const CLI::Option& option) {
  return option.get_type_size_max() == 0 ? 0 : option.get_expected_min();
}

Word word_of(const CLI::Option& option) {
  Word word;
  word.values = values_of(option);
  word.text = option.get_description();
  for (const std::string& name : option.get_snames()) word.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) word.names.push_back("--" + name);
  if (word.values > 0) word.value = option.get_type_name();
  return word;
}

}  // namespace

std::vector<WordGroup> RunWords::groups() const {
  std::vector<WordGroup> groups;
  WordGroup others{kOthers, {}};
  for (const CLI::Option* option : app_->get_options()) {
    const std::string title = option->get_group();
    if (title.empty()) continue;
    if (title == kOthers) {
      others.words.push_back(word_of(*option));
      continue;
    }
    if (groups.empty() || groups.back().title != title) groups.push_back({title, {}});
    groups.back().words.push_back(word_of(*option));
  }
  groups.push_back(std::move(others));
  return groups;
}

std::vector<Word> RunWords::hidden() const {
  std::vector<Word> words;
  for (const CLI::Option* option : app_->get_options())
    if (option->get_group().empty()) words.push_back(word_of(*option));
  return words;
}

std::vector<launch::OptionWord> RunWords::known() const {
  std::vector<launch::OptionWord> known;
  for (const CLI::Option* option : app_->get_options()) {
    const int values = values_of(*option);
    for (const std::string& name : option->get_snames()) known.push_back({name, values});
    for (const std::string& name : option->get_lnames()) known.push_back({name, values});
  }
  return known;
}

// ---- What was given

bool RunWords::is_given(const std::string& option) const {
  return app_->get_option(option)->count() > 0;
}

namespace {

/// Whether `word`, made uniform, is that option, by whichever of its names.
bool is_of(const CLI::Option& option, const std::string& word) {
  for (const std::string& name : option.get_lnames())
    if (word == "--" + name || word.starts_with("--" + name + "=")) return true;
  for (const std::string& name : option.get_snames())
    if (word.starts_with("-" + name) && !word.starts_with("--")) return true;
  return false;
}

}  // namespace

std::string RunWords::name_of(const std::string& option) const {
  const CLI::Option& meant = *app_->get_option(option);
  for (const std::string& name : meant.get_lnames())
    if (from_pet_.contains("--" + name)) return pet_name(name);
  for (const std::string& word : typed_) {
    if (!is_of(meant, word)) continue;
    return word.starts_with("--") ? word.substr(0, word.find('=')) : word.substr(0, 2);
  }
  return option;
}

void RunWords::take_pet(const Environment& environment, std::vector<std::string>& options) {
  for (const CLI::Option* option : app_->get_options()) {
    const auto is_typed = [&](const std::string& word) { return is_of(*option, word); };
    const bool takes_two = option->get_expected_min() > 1;  // mpirun's
    if (takes_two || std::any_of(options.begin(), options.end(), is_typed)) continue;
    for (const std::string& name : option->get_lnames()) {
      const auto variable = environment.find(pet_name(name));
      if (variable == environment.end() || variable->second.empty()) continue;
      const bool is_flag = option->get_type_size_max() == 0;
      if (is_flag && variable->second != "1") continue;
      options.push_back(is_flag ? "--" + name : fmt::format("--{}={}", name, variable->second));
      from_pet_.insert("--" + name);
      break;
    }
  }
}

bool RunWords::parse(const launch::CutArguments& cut, const Environment& environment) {
  typed_ = cut.options;
  std::vector<std::string> words = cut.options;
  take_pet(environment, words);
  std::reverse(words.begin(), words.end());  // CLI11 takes them from the back
  try {
    app_->parse(words);
  } catch (const CLI::CallForHelp&) {
    return false;
  } catch (const CLI::ParseError& error) {
    for (const CLI::Option* option : app_->get_options()) {
      if (option->count() < 2) continue;
      std::vector<std::string> typed;
      for (std::size_t i = 0; i < cut.options.size(); ++i)
        if (is_of(*option, cut.options[i])) typed.push_back(cut.typed[i]);
      refuse(fmt::format("{}: that is one option: give it once", fmt::join(typed, " and ")));
    }
    refuse(error.what());
  }
  for (const Refused& word : kRefused) {
    const std::string name = first_of(word.names);
    if (is_given(name)) refuse(fmt::format("{}: {}", name_of(name), word.why));
  }
  return true;
}

// ---- What it means

/// Several hosts are asked for by each of these.
void RunWords::check_hosts() const {
  constexpr const char* kWayOut =
      "tutti run starts ranks on this host only: start them on each host by mpirun or srun, or by "
      "hand with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT";
  const std::size_t colon = nnodes_.find(':');
  const std::string nnodes = name_of("--nnodes");
  const int least = number_of(nnodes, nnodes_.substr(0, colon), 1, 100'000);
  const int most =
      colon == nnodes_.npos ? least : number_of(nnodes, nnodes_.substr(colon + 1), 1, 100'000);
  if (least > most) refuse(fmt::format("{} {}: from many to few; write MIN:MAX", nnodes, nnodes_));
  if (most > least) {
    refuse(
        fmt::format("{} {}: the number of hosts of a job does not change while it runs; give one "
                    "number",
                    nnodes, nnodes_));
  }
  if (most > 1) refuse(fmt::format("{} {}: {}", nnodes, nnodes_, kWayOut));
  if (number_of(name_of("--node-rank"), node_rank_, 0, 100'000) > 0) {
    refuse(fmt::format("{} {}: of one host (--nnodes 1) there is number 0 only",
                       name_of("--node-rank"), node_rank_));
  }
  if (!rdzv_backend_.empty() && rdzv_backend_ != "static" && rdzv_backend_ != "c10d") {
    refuse(
        fmt::format("{} {}: there is no {} here; leave it out: the ranks of a job meet at tutti "
                    "run's own store",
                    name_of("--rdzv-backend"), rdzv_backend_, rdzv_backend_));
  }
  const std::pair<std::string, std::string> places[] = {
      {name_of("--master-addr"), master_address_},
      {"-x MASTER_ADDR", exported_master()},
      {name_of("--rdzv-endpoint"), host_of(rdzv_endpoint_)}};
  for (const auto& [name, host] : places) {
    if (host.empty() || launch::is_this_host(host)) continue;
    if (standalone_) {
      refuse(fmt::format("--standalone means this host, and {} {} another one: give one of them",
                         name, host));
    }
    refuse(fmt::format("{} {}: is not this host; {}", name, host, kWayOut));
  }
}

/// Of mpirun's -x MASTER_ADDR=HOST; empty: there is none.
std::string RunWords::exported_master() const {
  constexpr std::string_view kBegin = "MASTER_ADDR=";
  const auto found = std::find_if(exports_.begin(), exports_.end(), [&](const std::string& word) {
    return word.starts_with(kBegin);
  });
  return found == exports_.end() ? "" : found->substr(kBegin.size());
}

bool RunWords::knows_ranks(const Environment& environment) const {
  return names_ranks() || launch::find_allocation(environment).has_value();
}

int RunWords::gpus_per_rank() const {
  if (!is_given("--gpus-per-rank")) return 0;
  return number_of(name_of("--gpus-per-rank"), gpus_per_rank_, 1, 1024);
}

/// As the word says; `gpu` counts what the environment of the ranks shows of them.
std::optional<int> RunWords::asked_ranks(const Environment& of_ranks) const {
  if (!is_given("-n")) return std::nullopt;
  if (count_ == "gpu")
    return launch::ranks_by_gpus(name_of("-n"), launch::visible_gpus(of_ranks), gpus_per_rank());
  return launch::parse_rank_count(name_of("-n"), count_, usable_cores());
}

int RunWords::rank_count(const Environment& own, const Environment& of_ranks,
                         std::vector<std::string>* notes) const {
  if (names_ranks()) {
    const std::string several = launch::explain_several_starts(own);
    if (!several.empty()) notes->push_back("tutti run: " + several);
  } else {
    if (const auto allocation = launch::find_allocation(own)) {
      notes->push_back(fmt::format("tutti run: {} rank{}: {}", allocation->ranks,
                                   allocation->ranks == 1 ? "" : "s", allocation->source));
      return allocation->ranks;
    }
  }
  std::vector<launch::HostSlots> hosts;
  if (!hosts_.empty() && !hostfile_.empty()) {
    refuse("-H and --hostfile both name hosts: give one of them");
  }
  if (!hosts_.empty()) hosts = launch::parse_host_list(name_of("-H"), hosts_);
  if (!hostfile_.empty()) {
    const std::string text = launch::read_hostfile(name_of("--hostfile"), hostfile_);
    hosts = launch::parse_hostfile(hostfile_, text);
  }
  std::optional<int> asked = asked_ranks(of_ranks);
  if (one_a_host_) {
    if (asked.value_or(1) != 1) {
      refuse(fmt::format("--pernode means one rank here, and {} {} more: give one of them",
                         name_of("-n"), count_));
    }
    asked = 1;
  }
  const int ranks = launch::ranks_on(hosts, asked, oversubscribe_);
  const char* const counts = is_given("-n") ? "-n" : hosts_.empty() ? "--hostfile" : "-H";
  return launch::parse_rank_count(name_of(counts), std::to_string(ranks),
                                  usable_cores());  // within what there may be
}

void RunWords::set_output(launch::JobOptions& options) const {
  const int ranks = options.rank_count;
  const std::string nothing = "0";
  const auto redirects = launch::parse_streams(name_of("--redirects"),
                                               redirects_.empty() ? nothing : redirects_, ranks);
  const bool tees_all = !log_folder_.empty() && redirects_.empty() && tee_.empty();
  const auto tee = launch::parse_streams(name_of("--tee"),
                                         tees_all ? "3" : (tee_.empty() ? nothing : tee_), ranks);
  const auto shown = launch::parse_ranks(
      name_of("--local-ranks-filter"),
      shown_ranks_.empty() ? fmt::format("0-{}", ranks - 1) : shown_ranks_, ranks);
  options.style = {.names_streams = tag_output_, .folds = fold_output_, .shown = {}};
  bool keeps = false;
  for (std::size_t rank = 0; rank < redirects.size(); ++rank) {
    const auto hidden = static_cast<launch::StreamSet>(redirects[rank] & ~tee[rank]);
    options.style.shown.push_back(
        shown[rank] ? static_cast<launch::StreamSet>(launch::kBothStreams & ~hidden)
                    : launch::kNoStream);
    options.logs.streams.push_back(static_cast<launch::StreamSet>(redirects[rank] | tee[rank]));
    keeps = keeps || options.logs.streams.back() != launch::kNoStream;
  }
  if (!output_folder_.empty()) {
    if (keeps) {
      refuse(
          "--output-filename keeps all that ranks print, and so do --redirects, --tee and "
          "--log-dir: give one or the other");
    }
    check_output_folder();
    options.logs.folder = output_folder_;
    options.logs.names = launch::LogPlan::Names::mpirun;
    options.logs.streams.assign(redirects.size(), launch::kBothStreams);
  } else if (keeps) {
    options.logs.way_out = "name another folder by --log-dir";
    const std::string parent = log_folder_.empty()
                                   ? temporary_folder(options.environment, options.logs.way_out)
                                   : log_folder_;
    std::string name = options.run_id;
    std::replace(name.begin(), name.end(), '/', '_');  // one folder, and inside of `parent`
    options.logs.folder = parent + "/" + name;
    if (!rdzv_id_.empty()) options.logs.folder += fmt::format("_{:08x}", std::random_device{}());
  }
}

/// By mpirun words may follow a folder's name.
void RunWords::check_output_folder() const {
  const std::size_t colon = output_folder_.rfind(':');
  if (colon == output_folder_.npos) return;
  const std::string words = output_folder_.substr(colon + 1),
                    folder = output_folder_.substr(0, colon);
  for (const char* const known : {"nocopy", "nojobid", "nocopy,nojobid", "nojobid,nocopy"}) {
    if (words != known) continue;
    refuse(fmt::format(
        "{} {}: leave \":{}\" out: no name of the job stands in the path of a file; to keep all in "
        "files alone give --redirects 3 --log-dir {}",
        name_of("--output-filename"), output_folder_, words, folder));
  }
}

std::string RunWords::what_means_nothing() const {
  std::string text;
  for (const Meaningless& word : kMeaningless) {
    const std::string first = first_of(word.names);
    if (!is_given(first)) continue;
    text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", name_of(first), word.why);
  }
  return text;
}

launch::JobOptions RunWords::job(std::vector<std::string> command, Environment environment,
                                 std::vector<std::string>* notes) const {
  check_hosts();
  const Environment own = environment;
  for (std::string& note : launch::export_variables(exports_, environment)) {
    notes->push_back(std::move(note));
  }
  launch::JobOptions options;
  options.rank_count = rank_count(own, environment, notes);
  options.command = launch::command_of(std::move(command), module_, no_python_);
  options.run_id =
      rdzv_id_.empty() ? fmt::format("tutti_{:08x}", std::random_device{}()) : rdzv_id_;
  options.folder = folder_;
  if (reader_of_stdin_ != "0") {
    refuse(
        fmt::format("{} {}: rank 0 reads stdin, and the others find it empty; for all to find "
                    "it empty: tutti run ... < /dev/null",
                    name_of("--stdin"), reader_of_stdin_));
  }
  options.bind_to = launch::parse_bind_to(name_of("--bind-to"), bind_to_);
  options.map_by = launch::parse_map_by(name_of("--map-by"), map_by_);
  options.gpus_per_rank = gpus_per_rank();
  options.reports_bindings = reports_bindings_;
  options.master_address = master_address_.empty() ? exported_master() : master_address_;
  if (!master_port_.empty()) {
    options.master_port = number_of(name_of("--master-port"), master_port_, 0, 65'535);
  }
  options.max_restarts = number_of(name_of("--max-restarts"), max_restarts_, 0, 100'000);
  options.grace = duration_of(name_of("--grace"), grace_);
  options.failure_grace = failure_grace_of(name_of("--failure-grace"), failure_grace_, environment);
  if (timeout_ != "never") options.timeout = duration_of(name_of("--timeout"), timeout_);
  if (!role_.empty()) options.role = role_;
  options.environment = std::move(environment);
  set_output(options);
  if (const std::string nothing = what_means_nothing(); !nothing.empty()) {
    notes->push_back(fmt::format("tutti run: without meaning here: {}", nothing));
  }
  return options;
}

}  // namespace tutti::cli
