use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;

use super::*;
use crate::Digest as Sum;

const SIZE: u64 = 1 << 20;

thread_local! {
    /// Copies of a catalog as it was at each step, while somebody collects them.
    static COPIES: RefCell<Option<Vec<TempDir>>> = const { RefCell::new(None) };
}

/// Keeps a copy of the catalog in `dir`, if this thread collects them.
pub(crate) fn step(dir: &Path) {
    COPIES.with_borrow_mut(|copies| {
        if let Some(copies) = copies {
            let to = tempfile::tempdir().unwrap();
            copy_tree(dir, to.path());
            copies.push(to);
        }
    });
}

fn copy_tree(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            fs::create_dir(&to).unwrap();
            copy_tree(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

fn name(text: &str) -> ImageName {
    text.parse().unwrap()
}

fn go_on(_: crate::Progress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn owner() -> Owner {
    Owner::new("/run/test", "disk")
}

fn open_image(catalog: &Catalog, image: &str, access: Access) -> Result<Image, StoreError> {
    catalog.open_image(&name(image), access, &owner(), Cache::PageCache)
}

fn write(catalog: &Catalog, image: &str, offset: u64, byte: u8) {
    let data = [byte; 100 << 10];
    match open_image(catalog, image, Access::Write).unwrap() {
        Image::Raw(raw) => raw.file().write_all_at(&data, offset).unwrap(),
        Image::Qcow2(qcow2) => qcow2.write(offset, &data).unwrap(),
    }
}

fn content(image: &Image) -> Vec<u8> {
    let mut data = vec![0; image.size() as usize];
    match image {
        Image::Raw(raw) => raw.file().read_exact_at(&mut data, 0).unwrap(),
        Image::Qcow2(qcow2) => qcow2.read(0, &mut data).unwrap(),
    }
    data
}

/// raw, qcow2, base with a clone, and a snapshot with its image on it.
fn catalog() -> (TempDir, Catalog) {
    let dir = tempfile::tempdir().unwrap();
    let catalog = Catalog::open(dir.path()).unwrap();
    for (index, (image, format)) in
        [("raw", Format::Raw), ("qcow2", Format::Qcow2), ("base", Format::Raw)].iter().enumerate()
    {
        catalog.create(&name(image), SIZE, *format).unwrap();
        write(&catalog, image, index as u64 * 70_000, index as u8 + 1);
    }
    catalog.clone_image(&name("base"), &name("clone")).unwrap();
    write(&catalog, "clone", 300_000, 9);
    (dir, catalog)
}

/// All that can be seen of an image.
type State = BTreeMap<ImageName, (Format, Vec<u8>, Option<ImageName>, Vec<ImageName>)>;

/// Opens the catalog anew and looks at all images, which must be whole.
fn state(dir: &Path) -> State {
    let catalog = Catalog::open(dir).unwrap();
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap().file_name().into_string().unwrap();
        assert!(entry == LOCK || !entry.starts_with('.'), "{entry} is left");
    }
    let mut state = State::new();
    for (image, summary) in catalog.list().unwrap() {
        assert_eq!(summary.unwrap().name, image);
        let open = open_image(&catalog, image.as_str(), Access::Read).unwrap();
        let data = content(&open);
        drop(open);
        let report = catalog.check(&image).unwrap();
        assert!(report.is_sound(), "{image}: {report:?}");
        let shown = catalog.show(&image).unwrap();
        assert_eq!(shown.summary.size, data.len() as u64);
        let backing = shown.summary.backing;
        state.insert(
            image,
            (open_format(&catalog, &shown.summary.name), data, backing, shown.clones),
        );
    }
    state
}

fn open_format(catalog: &Catalog, image: &ImageName) -> Format {
    catalog.show(image).unwrap().summary.format
}

#[test]
fn a_crash_at_any_step_leaves_the_old_or_the_new() {
    type Operation = fn(&Catalog);
    fn import(catalog: &Catalog, format: Format) {
        let source = tempfile::NamedTempFile::new().unwrap();
        source.as_file().write_all_at(&[7; 300_000], 100_000).unwrap();
        let how = Import { source: Format::Raw, format, digest: Sum::Compute };
        catalog.import(source.path(), &name("new"), &how, &mut go_on).unwrap();
    }
    let operations: &[(&str, Operation)] = &[
        ("create raw", |c| c.create(&name("new"), SIZE, Format::Raw).unwrap()),
        ("create qcow2", |c| c.create(&name("new"), SIZE, Format::Qcow2).unwrap()),
        ("clone", |c| c.clone_image(&name("raw"), &name("new")).unwrap()),
        ("clone again", |c| c.clone_image(&name("base"), &name("new")).unwrap()),
        ("snapshot raw", |c| drop(c.snapshot(&name("raw"), "s").unwrap())),
        ("snapshot qcow2", |c| drop(c.snapshot(&name("qcow2"), "s").unwrap())),
        ("snapshot clone", |c| drop(c.snapshot(&name("clone"), "s").unwrap())),
        ("import raw", |c| import(c, Format::Raw)),
        ("import qcow2", |c| import(c, Format::Qcow2)),
        ("grow raw", |c| c.resize(&name("raw"), 2 * SIZE, false).unwrap()),
        ("grow qcow2", |c| c.resize(&name("qcow2"), 2 * SIZE, false).unwrap()),
        ("grow clone", |c| c.resize(&name("clone"), 2 * SIZE, false).unwrap()),
        ("shrink raw", |c| c.resize(&name("raw"), SIZE / 2, true).unwrap()),
        ("delete raw", |c| c.delete(&name("raw")).unwrap()),
        ("delete clone", |c| c.delete(&name("clone")).unwrap()),
    ];
    for (what, operation) in operations {
        let (dir, catalog) = catalog();
        let before = state(dir.path());
        COPIES.set(Some(Vec::new()));
        operation(&catalog);
        let copies = COPIES.take().unwrap();
        let after = state(dir.path());
        assert!(before != after, "{what}");
        assert!(copies.len() >= 2, "{what} has {} steps", copies.len());
        let mut done = false;
        for (index, copy) in copies.iter().enumerate() {
            let found = state(copy.path());
            assert!(found == before || found == after, "{what}, step {index}");
            assert!(!done || found == after, "{what}, step {index}: it was done before");
            done = found == after;
            // Once more: what was found there can be worked with.
            if !done {
                operation(&Catalog::open(copy.path()).unwrap());
                assert!(state(copy.path()) == after, "{what}, again after step {index}");
            }
        }
    }
}

#[test]
fn a_base_does_not_change() {
    let (_dir, catalog) = catalog();
    let base = name("base");
    let refused = |result: Result<(), StoreError>| match result {
        Err(StoreError::HasClones { clones, .. }) => assert_eq!(clones, [name("clone")]),
        other => panic!("{other:?}"),
    };
    refused(open_image(&catalog, "base", Access::Write).map(drop));
    refused(catalog.resize(&base, 2 * SIZE, false));
    refused(catalog.snapshot(&base, "s").map(drop));
    refused(catalog.delete(&base));
    assert_eq!(catalog.show(&base).unwrap().clones, [name("clone")]);
    catalog.delete(&name("clone")).unwrap();
    assert!(catalog.show(&base).unwrap().clones.is_empty());
    write(&catalog, "base", 0, 1);
    catalog.delete(&base).unwrap();
}

#[test]
fn a_hint_is_not_believed() {
    let (_dir, catalog) = catalog();
    let hints = catalog.dir().join("raw").join(CLONES);
    fs::create_dir(&hints).unwrap();
    for hint in ["clone", "qcow2", "gone", "raw", ".hidden"] {
        File::create(hints.join(hint)).unwrap();
    }
    assert!(catalog.show(&name("raw")).unwrap().clones.is_empty());
    catalog.delete(&name("raw")).unwrap();
}

#[test]
fn a_snapshot_is_read_only_and_outlives_its_image() {
    let (_dir, catalog) = catalog();
    let before = content(&open_image(&catalog, "raw", Access::Read).unwrap());
    let snapshot = catalog.snapshot(&name("raw"), "s").unwrap();
    write(&catalog, "raw", 0, 77);
    assert!(matches!(
        open_image(&catalog, "raw@s", Access::Write),
        Err(StoreError::Snapshot(found)) if found == snapshot
    ));
    assert!(matches!(catalog.snapshot(&name("raw"), "s"), Err(StoreError::Exists(_))));
    assert!(catalog.create(&name("raw@t"), SIZE, Format::Raw).is_err());
    assert!(matches!(catalog.delete(&snapshot), Err(StoreError::HasClones { .. })));
    catalog.delete(&name("raw")).unwrap();
    assert!(content(&open_image(&catalog, "raw@s", Access::Read).unwrap()) == before);
    catalog.clone_image(&snapshot, &name("back")).unwrap();
    assert!(content(&open_image(&catalog, "back", Access::Read).unwrap()) == before);
}

#[test]
fn chains_are_bounded() {
    let (_dir, catalog) = catalog();
    for index in 1..MAX_CHAIN {
        catalog.snapshot(&name("raw"), &format!("s{index}")).unwrap();
    }
    assert_eq!(catalog.show(&name("raw")).unwrap().chain.len(), MAX_CHAIN - 1);
    assert!(matches!(catalog.snapshot(&name("raw"), "more"), Err(StoreError::TooDeep(_))));
    let error = catalog.clone_image(&name("raw"), &name("more")).unwrap_err();
    assert!(matches!(error, StoreError::TooDeep(_)), "{error}");
    write(&catalog, "raw", 0, 5);

    // One that goes round has no end.
    let dir = catalog.dir_of(&name("clone"));
    let mut meta = Meta::load(&dir, &name("clone")).unwrap();
    meta.backing = Some(name("clone"));
    meta.store(&dir).unwrap();
    for access in [Access::Read, Access::Write] {
        assert!(open_image(&catalog, "clone", access).is_err());
    }
    assert_eq!(catalog.show(&name("clone")).unwrap().chain.len(), MAX_CHAIN);
}

#[test]
fn sizes_and_names_are_checked() {
    let (_dir, catalog) = catalog();
    for size in [0, 511, 513, MAX_SIZE + 512, u64::MAX] {
        for format in [Format::Raw, Format::Qcow2] {
            let error = catalog.create(&name("new"), size, format).unwrap_err();
            assert!(matches!(error, StoreError::BadSize(found) if found == size));
        }
        assert!(catalog.resize(&name("raw"), size, true).is_err());
    }
    let error = catalog.resize(&name("qcow2"), SIZE / 2, false).unwrap_err();
    assert!(matches!(error, StoreError::Shrink { from: SIZE, .. }), "{error}");
    assert!(matches!(catalog.delete(&name("none")), Err(StoreError::NotFound(_))));
    assert!(matches!(open_image(&catalog, "none", Access::Read), Err(StoreError::NotFound(_))));
    let error = catalog.create(&name("raw"), SIZE, Format::Raw).unwrap_err();
    assert!(matches!(error, StoreError::Exists(_)), "{error}");
}

#[test]
fn damage_is_named_and_can_be_deleted() {
    let (_dir, catalog) = catalog();
    let damaged = |image: &str| match open_image(&catalog, image, Access::Write) {
        Err(StoreError::Damaged { what, .. }) => what,
        other => panic!("{other:?}"),
    };
    let file = File::options().write(true).open(catalog.dir().join("raw/image.raw")).unwrap();
    file.set_len(SIZE - 512).unwrap();
    assert!(damaged("raw").contains("should have"));
    assert!(!catalog.check(&name("raw")).unwrap().is_sound());
    fs::write(catalog.dir().join("qcow2/image.qcow2"), [0; 4096]).unwrap();
    assert!(damaged("qcow2").contains("not a qcow2"));
    assert!(!catalog.check(&name("qcow2")).unwrap().is_sound());
    for text in ["", "{}", "{\"version\": 2}", "null"] {
        fs::write(catalog.dir().join("clone/meta.json"), text).unwrap();
        assert!(damaged("clone").contains("meta.json"));
    }
    let list = catalog.list().unwrap();
    let told: Vec<_> = list.iter().map(|(image, about)| (image.as_str(), about.is_ok())).collect();
    assert_eq!(told, [("base", true), ("clone", false), ("qcow2", true), ("raw", true)]);
    for image in ["raw", "qcow2", "clone", "base"] {
        catalog.delete(&name(image)).unwrap();
    }
}

#[test]
fn one_of_many_gets_the_name_and_nobody_loses_a_draft() {
    let (_dir, catalog) = catalog();
    std::thread::scope(|scope| {
        let makers: Vec<_> = (0..4)
            .map(|maker| {
                let catalog = &catalog;
                scope.spawn(move || {
                    let mut made = 0;
                    for round in 0..20 {
                        // Its cleaning meets the drafts of the others.
                        let catalog = Catalog::open(catalog.dir()).unwrap();
                        match catalog.clone_image(&name("base"), &name(&format!("x{round}"))) {
                            Ok(()) => made += 1,
                            Err(StoreError::Exists(_)) => {}
                            Err(other) => panic!("{other}"),
                        }
                        let own = name(&format!("own-{maker}"));
                        let source = catalog.dir().join("base/image.raw");
                        let how = Import {
                            source: Format::Raw,
                            format: Format::Qcow2,
                            digest: Sum::None,
                        };
                        catalog.import(&source, &own, &how, &mut go_on).unwrap();
                        catalog.delete(&own).unwrap();
                    }
                    made
                })
            })
            .collect();
        let made: usize = makers.into_iter().map(|maker| maker.join().unwrap()).sum();
        assert_eq!(made, 20);
    });
    assert_eq!(catalog.show(&name("base")).unwrap().clones.len(), 21);
}
