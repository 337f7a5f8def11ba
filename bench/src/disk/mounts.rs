//! Mounts under test: hayate's of a store, and gfarm2fs.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use super::load::Random;
use super::sut::{Backend, Images, store};
use crate::sut::process::{Process, Rank, run};
use crate::sut::{SutError, hayate};

/// How Gfarm is started, in namespaces of its own.
const GFARM: &str = include_str!("gfarm.sh");
/// Who is a client's, and who has its files.
const ROLES: [&[&str]; 2] = [&["gfarm2fs"], &["gfsd", "gfmd"]];

/// Starts a store that has the image, and `hayate image mount` of it, on one CPU. The kernel may cache what
/// is read, for who does not say O_DIRECT.
///
/// # Errors
/// One of them cannot be started.
pub(super) fn fuse(images: &Images, transport: &str, cpu: usize) -> Result<Backend, SutError> {
    let program = hayate::program()?;
    let io = |what: &str| SutError::io(what.to_owned());
    let dir = tempfile::Builder::new().prefix("hayate-").tempdir_in(images.dir());
    let dir = dir.map_err(io("a directory beside the images"))?;
    let (run_dir, cpu) = (dir.path().join("run"), cpu.to_string());
    // The daemon makes an image, of which the file is exchanged for that of the others.
    let run_text = run_dir.display().to_string();
    let start = [&program, "daemon", "--run-dir", &run_text, "--cpus", &cpu, "--log", "warn"];
    let start = start.map(str::to_owned);
    let log = dir.path().join("log");
    let mut daemon = Process::start("hayate daemon", Rank::Ordinary, &start, &[], &log, None)?;
    let size = format!("{}M", images.size() >> 20);
    let create = ["image", "create", "d0", "--size", &size, "--format", "raw"];
    let command =
        |words: &[&str]| run(&[&[program.as_str(), "--run-dir", &run_text], words].concat(), &[]);
    daemon.wait_for(20, || command(&["disk", "list"]).ok())?;
    command(&create)?;
    drop(daemon);
    let file = images.file(0)?;
    let image = run_dir.join("state/images/d0/image.raw");
    let same = fs::remove_file(&image).and_then(|()| fs::hard_link(&file, &image));
    same.map_err(io("the image cannot be linked"))?;
    let (server, at) = store(&program, &run_dir.join("state/images"), dir.path(), (&cpu, "host"))?;
    let mnt = dir.path().join("mnt");
    fs::create_dir(&mnt).map_err(io("a directory to mount at"))?;
    let (place, mnt_text) = (format!("store://{at}/"), mnt.display().to_string());
    let start = ["taskset", "-c", &cpu, &program, "image", "mount", &place, &mnt_text];
    let how = ["--cache", "--transport", transport, "--log", "warn,fuser=error"];
    let start: Vec<String> = start.iter().chain(&how).map(|&word| word.to_owned()).collect();
    let log = dir.path().join("mount.log");
    let mut process =
        Process::start("hayate image mount", Rank::Ordinary, &start, &[], &log, None)?;
    let path = mnt.join("d0");
    process.wait_for(10, || fs::metadata(&path).ok())?;
    let (file, path, server) = (Some(file), Some(path), Some(server));
    Ok(Backend {
        sockets: Vec::new(),
        file,
        path,
        uri: None,
        process,
        server,
        roles: None,
        _dir: dir,
    })
}

/// Starts Gfarm with a file of the images' size in gfsd's spool beside them, and gfarm2fs, on one CPU.
///
/// # Errors
/// Something of it cannot be started, or the file not be written.
pub(super) fn gfarm(images: &Images, cpu: usize) -> Result<Backend, SutError> {
    let io = |what: &str| SutError::io(what.to_owned());
    let dir = tempfile::Builder::new().prefix("gfarm-").tempdir_in(images.dir());
    let dir = dir.map_err(io("a directory beside the images"))?;
    let (home, spool) = (dir.path().join("gfarm"), dir.path().join("spool"));
    let script = dir.path().join("gfarm.sh");
    fs::write(&script, GFARM).map_err(io("gfarm.sh cannot be written"))?;
    let text = |path: &Path| path.display().to_string();
    let spaces = ["--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"];
    let mut start: Vec<String> = vec!["unshare".to_owned()];
    start.extend(spaces.map(str::to_owned));
    start.extend(["sh".to_owned(), text(&script), text(&home), text(&spool), cpu.to_string()]);
    let log = dir.path().join("log");
    let mut process = Process::start("Gfarm", Rank::Ordinary, &start, &[], &log, Some("end"))?;
    let ready = || fs::read_to_string(&log).ok().filter(|said| said.contains("ready"));
    process.wait_for(60, ready)?;
    // Its mounts are its own.
    let root = PathBuf::from(format!("/proc/{}/root", process.pid()));
    let mnt = home.join("mnt");
    let path = root.join(mnt.strip_prefix("/").unwrap_or(&mnt)).join("d0");
    fill(&path, images.size()).map_err(io("a file of Gfarm cannot be written"))?;
    let (file, path) = (Some(spool), Some(path));
    let roles = Some(ROLES);
    Ok(Backend {
        sockets: Vec::new(),
        file,
        path,
        uri: None,
        process,
        server: None,
        roles,
        _dir: dir,
    })
}

/// Writes a file over in full.
fn fill(path: &Path, size: u64) -> std::io::Result<()> {
    use std::io::Write;
    let mut file = File::create(path)?;
    let (mut random, mut data) = (Random::new(size), vec![0; 1 << 20]);
    let mut left = size;
    while left > 0 {
        random.fill(&mut data);
        let some = data.get(..left.min(1 << 20) as usize).unwrap_or(&data);
        file.write_all(some)?;
        left -= some.len() as u64;
    }
    file.sync_all()
}

/// The largest file below a directory, as gfsd keeps it: each time that it was written, by another name.
pub(super) fn largest(dir: &Path) -> Option<PathBuf> {
    let mut best: Option<(u64, PathBuf)> = None;
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok) {
            match entry.metadata() {
                Ok(found) if found.is_dir() => dirs.push(entry.path()),
                Ok(found) if best.as_ref().is_none_or(|(size, _)| found.len() > *size) => {
                    best = Some((found.len(), entry.path()));
                }
                _ => {}
            }
        }
    }
    best.map(|(_, path)| path)
}
