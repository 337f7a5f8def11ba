//! fio with io_uring on the bare file: no device, no guest, no rings between two processes; or as the client
//! of an NBD server.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Deserialize;

use super::cell::{Job, Medium};
use super::load::LoadError;
use super::window::{LENGTH, SETTLE};
use crate::sched;
use crate::sut::process::{Process, Rank};
use crate::window::RoundTrips;

/// Between two looks at the CPU time of a process.
const LOOK: Duration = Duration::from_millis(5);
/// How long a run may take that is to take [`LENGTH`].
const LATE: Duration = Duration::from_secs(30);
/// Most requests that it hands over at once.
const BATCH: u16 = 16;

/// What one run of fio found.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// Requests a second.
    pub rate: f64,
    /// How long they took.
    pub latency: RoundTrips,
    /// CPU time of the threads of all jobs, those of the kernel's io-wq too, in seconds for a second,
    /// while requests were made.
    pub cpu: f64,
    /// The same of the server.
    pub server: Option<f64>,
}

/// What it reads and writes.
#[derive(Clone, Copy, Debug)]
pub enum Target<'a> {
    /// A file.
    File(&'a Path),
    /// An export at this URI, of a process.
    Nbd(&'a str, u32),
}

/// The output, of which the beginning may be words of warning.
#[derive(Deserialize)]
struct Output {
    jobs: Vec<Group>,
}

/// All jobs together.
#[derive(Deserialize)]
struct Group {
    #[serde(default)]
    error: i64,
    read: Side,
    write: Side,
}

/// One direction.
#[derive(Deserialize)]
struct Side {
    iops: f64,
    total_ios: usize,
    lat_ns: Times,
}

#[derive(Deserialize)]
struct Times {
    #[serde(default)]
    percentile: BTreeMap<String, f64>,
}

/// Requests a second, and how long they took, of fio's JSON.
///
/// # Errors
/// It is none, a job failed, or nothing was done.
pub fn parse(text: &str) -> Result<(f64, RoundTrips), LoadError> {
    let failed = |what: &str| LoadError::Fio(what.to_owned());
    let json = text.find('{').and_then(|at| text.get(at..));
    let json = json.ok_or_else(|| failed(text.lines().next().unwrap_or("it said nothing")))?;
    let output: Output = serde_json::from_str(json).map_err(|e| failed(&e.to_string()))?;
    let [group] = output.jobs.as_slice() else { return Err(failed("not one group of jobs")) };
    if group.error != 0 {
        return Err(failed(&format!("error {}", group.error)));
    }
    let sides = [&group.read, &group.write];
    let side = sides.into_iter().find(|side| side.total_ios > 0);
    let side = side.ok_or_else(|| failed("no request was made"))?;
    let at = |share: f64| {
        let found = side.lat_ns.percentile.iter().find(|(key, _)| key.parse() == Ok(share));
        found.map(|(_, nanos)| *nanos).ok_or_else(|| failed("a percentile is missing"))
    };
    let (p50, p99, p999) = (at(50.0)?, at(99.0)?, at(99.9)?);
    Ok((side.iops, RoundTrips { n: side.total_ios, p50, p99, p999 }))
}

/// What a job is to fio.
fn job_of(job: &Job) -> String {
    let rw = match (job.access.random(), job.access.writes()) {
        (true, false) => "randread",
        (true, true) => "randwrite",
        (false, false) => "read",
        (false, true) => "write",
    };
    let Job { block, depth, jobs, .. } = job;
    format!("--rw={rw} --bs={block} --iodepth={depth} --numjobs={jobs}")
}

/// What it is asked in every case.
const ASKED: &str = "--name=bench --thread --group_reporting --norandommap --randrepeat=0 \
                     --lat_percentiles=1 --clat_percentiles=0 --percentile_list=50:99:99.9 \
                     --output-format=json";

/// Bytes that a guest reads one after the other as dd does, at most: they fit into its page cache, and are
/// read once.
const AS_DD: u64 = 64 << 20;
/// How long requests are made in a guest: each takes long there.
const IN_GUEST: Duration = Duration::from_secs(1);

/// The command for a job on a device of a guest.
#[must_use]
pub fn in_guest(job: &Job, device: &str, size: u64) -> String {
    let how = if job.as_dd() {
        format!("--ioengine=psync --direct=0 --size={}", size.min(AS_DD))
    } else {
        let run = IN_GUEST.as_millis();
        format!("--ioengine=libaio --direct=1 --size={size} --time_based --runtime={run}ms")
    };
    format!("cd /tmp && fio {ASKED} {} {how} --filename={device}", job_of(job))
}

/// The command for a job on a file.
fn command(job: &Job, target: Target<'_>, size: u64, medium: Medium, cpu: usize) -> Vec<String> {
    let depth = job.depth;
    let (engine, name) = match target {
        // What a process can do at best: its file and buffers registered, system calls for many requests.
        Target::File(file) => (
            "--ioengine=io_uring --registerfiles --fixedbufs",
            format!("--filename={}", file.display()),
        ),
        Target::Nbd(uri, _) => ("--ioengine=nbd", format!("--uri={uri}")),
    };
    let direct = u8::from(medium.direct() && matches!(target, Target::File(_)));
    let options = [
        ASKED.to_owned(),
        "--time_based".to_owned(),
        engine.to_owned(),
        job_of(job),
        format!("--iodepth_batch_submit={}", depth.min(BATCH)),
        format!("--iodepth_batch_complete_min=1 --iodepth_batch_complete_max={depth}"),
        format!("--size={size} --direct={direct}"),
        format!("--runtime={}ms --ramp_time={}ms", LENGTH.as_millis(), SETTLE.as_millis()),
    ];
    let pinned = ["taskset", "-c"].map(str::to_owned).into_iter().chain([cpu.to_string()]);
    let words = options.iter().flat_map(|some| some.split_whitespace()).map(str::to_owned);
    pinned.chain(["fio".to_owned()]).chain(words).chain([name]).collect()
}

/// Runs it once, on one CPU.
///
/// # Errors
/// It is not there, or fails.
pub fn run(
    job: &Job,
    (target, log): (Target<'_>, &Path),
    size: u64,
    medium: Medium,
    cpu: usize,
) -> Result<Found, LoadError> {
    let fio = |error: crate::sut::SutError| LoadError::Fio(error.to_string());
    let command = command(job, target, size, medium, cpu);
    let mut process =
        Process::start("fio", Rank::Ordinary, &command, &[], log, None).map_err(fio)?;
    let (start, mut looks, mut served) = (Instant::now(), Vec::new(), Vec::new());
    while process.alive() && start.elapsed() < LATE {
        looks.push((start.elapsed(), sched::cpu_time_of_threads(process.pid())));
        if let Target::Nbd(_, server) = target {
            served.push((start.elapsed(), sched::cpu_time(server)));
        }
        std::thread::sleep(LOOK);
    }
    drop(process);
    let said = fs::read_to_string(log);
    let said = said.map_err(|source| LoadError::Io { what: "fio's output", source })?;
    let (rate, latency) = parse(&said)?;
    let server = (!served.is_empty()).then(|| share(&served));
    Ok(Found { rate, latency, cpu: share(&looks), server })
}

/// CPU time in a second, of looks at it: where it was used the most, over most of [`LENGTH`]. Before
/// and after, the threads of jobs have next to nothing to do.
fn share(looks: &[(Duration, Duration)]) -> f64 {
    let span = LENGTH * 3 / 4;
    let from = |&(at, used): &(Duration, Duration)| {
        let later = looks.iter().find(|(later, _)| *later >= at + span)?;
        let (time, used) = (later.0 - at, later.1.saturating_sub(used));
        Some(used.as_secs_f64() / time.as_secs_f64())
    };
    looks.iter().filter_map(from).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::cell::Access;

    const SAID: &str = r#"note: both iodepth >= 1 and synchronous I/O engine are selected
{ "fio version" : "fio-3.33",
  "jobs" : [ { "jobname" : "bench", "error" : 0,
    "read" : { "iops" : 414379.5, "total_ios" : 207604, "bw_bytes" : 1697298432,
      "lat_ns" : { "min" : 1, "percentile" : { "50.000000" : 80384, "99.000000" : 173056,
        "99.900000" : 257024 } } },
    "write" : { "iops" : 0.0, "total_ios" : 0, "lat_ns" : { "min" : 0 } } } ] }"#;

    #[test]
    fn its_json_is_read() {
        let (rate, times) = parse(SAID).unwrap();
        assert_eq!(rate, 414_379.5);
        let wanted = RoundTrips { n: 207_604, p50: 80_384.0, p99: 173_056.0, p999: 257_024.0 };
        assert_eq!(times, wanted);
    }

    #[test]
    fn a_run_that_failed_is_no_figure() {
        for (wrong, why) in [
            (SAID.replace("\"error\" : 0", "\"error\" : 5"), "error 5"),
            (SAID.replace("207604", "0"), "no request"),
            (SAID.replace("99.900000", "99.950000"), "percentile"),
            ("fio: engine io_uring not loadable".to_owned(), "not loadable"),
            (String::new(), "said nothing"),
            (SAID.replace("\"jobs\" : [", "\"jobs\" : [], \"x\" : ["), "not one group"),
        ] {
            let said = parse(&wrong).unwrap_err().to_string();
            assert!(said.contains(why), "{said}: {why}");
        }
    }

    #[test]
    fn the_command_says_what_the_cell_does() {
        let job = Job { access: Access::RandomWrite, block: 4096, depth: 32, jobs: 4 };
        let file = Target::File(Path::new("/x/y"));
        let words = command(&job, file, 1 << 30, Medium::Disk, 3);
        for word in [
            "--rw=randwrite",
            "--bs=4096",
            "--iodepth=32",
            "--numjobs=4",
            "--direct=1",
            "--size=1073741824",
            "--filename=/x/y",
        ] {
            assert!(words.iter().any(|w| w == word), "{word}: {words:?}");
        }
        assert_eq!(words[..4], ["taskset", "-c", "3", "fio"]);
        let words = command(&job, Target::Nbd("nbd://127.0.0.1:7", 1), 1, Medium::Disk, 3);
        for word in ["--ioengine=nbd", "--uri=nbd://127.0.0.1:7", "--direct=0"] {
            assert!(words.iter().any(|w| w == word), "{word}: {words:?}");
        }
    }

    #[test]
    fn a_guest_goes_past_its_page_cache_but_as_dd_does() {
        let job = Job { access: Access::RandomRead, block: 4096, depth: 32, jobs: 1 };
        let said = in_guest(&job, "/dev/vdc", 1 << 30);
        for word in ["--rw=randread", "--direct=1", "--iodepth=32", "--filename=/dev/vdc"] {
            assert!(said.contains(word), "{word}: {said}");
        }
        assert!(!said.contains('\n'), "{said}");
        let dd = in_guest(&Job { access: Access::Read, depth: 1, ..job }, "/dev/vdc", 1 << 30);
        assert!(dd.contains("--direct=0 --size=67108864 "), "{dd}");
        assert!(!dd.contains("--time_based"), "{dd}");
    }

    #[test]
    fn cpu_is_that_of_the_busy_part() {
        // 0.3 s of starting at a tenth of a CPU, and then half a CPU.
        let look = |n: u64| {
            let used = if n < 300 { n * 100 } else { 30_000 + (n - 300) * 500 };
            (Duration::from_millis(n), Duration::from_micros(used))
        };
        let looks: Vec<_> = (0..=700).step_by(5).map(look).collect();
        assert!((share(&looks) - 0.5).abs() < 1e-6, "{}", share(&looks));
        assert_eq!(share(&looks[..10]), 0.0);
    }
}
