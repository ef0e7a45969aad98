//! Status codes are written in this crate only.

use std::fs;
use std::path::{Path, PathBuf};

/// The crates that send and receive HTTP, but for `client`, which is for callers and depends on none of the others, and `testbed`.
const CRATES: [&str; 5] = ["cli", "control", "gateway", "listen", "server"];
const STATUS_CODES: [&str; 3] = ["StatusCode::", ".as_u16() <", ".as_u16() =="];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn no_status_code_is_written_in_another_crate() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut files = Vec::new();
    for name in CRATES {
        sources(&crates.join(name).join("src"), &mut files);
    }
    assert!(files.len() > 50, "the sources were not found");
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        for (number, line) in text.lines().enumerate() {
            let is_found = STATUS_CODES.iter().any(|code| line.contains(code));
            assert!(
                !is_found,
                "{}:{}: a status code; it belongs into crates/http",
                file.display(),
                number + 1
            );
        }
    }
}
