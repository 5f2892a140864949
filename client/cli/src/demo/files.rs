//! Which files the demo stores, and under which names.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
};

use stripeset_proto::limits::NAME_BYTES_MAX;

use crate::failure::Failure;

/// A file to store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SourceFile {
    pub(super) path: PathBuf,
    /// Name of the object.
    pub(super) name: String,
    pub(super) bytes: u64,
}

/// All that was found.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) files: Vec<SourceFile>,
    /// What could not be read, and why.
    pub(super) errors: Vec<String>,
    names: BTreeSet<String>,
}

impl Found {
    pub(super) fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }
}

/// Finds the regular files in `paths`; this program itself if there are none. Symbolic links in folders are skipped,
/// ones that were given are followed. A path that is not there is an error; what cannot be read in a folder is noted.
pub(super) fn find(paths: &[PathBuf]) -> Result<Found, Failure> {
    let mut found = Found::default();
    if paths.is_empty() {
        let program = std::env::current_exe()?;
        let bytes = fs::metadata(&program)?.len();
        found.add(program, "stripeset".to_owned(), bytes);
    }
    for path in paths {
        let metadata = match fs::metadata(path) {
            Ok(metadata) => metadata,
            Err(error) => {
                let message = format!("cannot read {}: {error}: give files and folders", path.display());
                return Err(Failure::usage(message));
            }
        };
        // `.` and `..` have no name of their own.
        let real = fs::canonicalize(path)?;
        let name = real.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if metadata.is_dir() {
            found.walk(&real, &name);
        } else if metadata.is_file() {
            found.add(real, name, metadata.len());
        } else {
            let message = format!("{} is no file and no folder: give files and folders", path.display());
            return Err(Failure::usage(message));
        }
    }
    if found.files.is_empty() {
        let mut message =
            "there is no regular file in what was given, so there is nothing to store".to_owned();
        for error in &found.errors {
            message = format!("{message}\n  {error}");
        }
        return Err(Failure::usage(message));
    }
    Ok(found)
}

impl Found {
    fn walk(&mut self, root: &Path, root_name: &str) {
        let mut folders = vec![(root.to_owned(), root_name.to_owned())];
        while let Some((folder, prefix)) = folders.pop() {
            let entries = fs::read_dir(&folder).and_then(|entries| entries.collect::<io::Result<Vec<_>>>());
            let mut entries = match entries {
                Ok(entries) => entries,
                Err(error) => {
                    self.errors.push(format!("{}: {error}", folder.display()));
                    continue;
                }
            };
            // The same order every time, whatever the file system's is.
            entries.sort_by_key(fs::DirEntry::file_name);
            for entry in entries {
                let path = entry.path();
                let Ok(word) = entry.file_name().into_string() else {
                    self.errors.push(format!("{}: the name is not UTF-8", path.display()));
                    continue;
                };
                let name = if prefix.is_empty() { word } else { format!("{prefix}/{word}") };
                // Of the entry itself: a symbolic link is neither file nor folder.
                match entry.metadata() {
                    Ok(metadata) if metadata.is_dir() => folders.push((path, name)),
                    Ok(metadata) if metadata.is_file() => self.add(path, name, metadata.len()),
                    Ok(_) => {}
                    Err(error) => self.errors.push(format!("{}: {error}", path.display())),
                }
            }
        }
    }

    fn add(&mut self, path: PathBuf, name: String, bytes: u64) {
        if let Err(error) = fs::File::open(&path) {
            self.errors.push(format!("{}: {error}", path.display()));
            return;
        }
        if name.len() > NAME_BYTES_MAX {
            self.errors.push(format!("{}: the name has more than {NAME_BYTES_MAX} bytes", path.display()));
            return;
        }
        // Two folders of the same name were given: the second one's files get a number.
        let mut unique = name.clone();
        let mut number = 1;
        while !self.names.insert(unique.clone()) {
            number += 1;
            unique = format!("{number}/{name}");
        }
        self.files.push(SourceFile { path, name: unique, bytes });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regular_files_are_found_with_relative_names_and_links_are_skipped() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().join("photos");
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::write(root.join("a/b/1"), "xyz").unwrap();
        fs::write(root.join("2"), "").unwrap();
        std::os::unix::fs::symlink("2", root.join("link")).unwrap();
        std::os::unix::fs::symlink("..", root.join("a/loop")).unwrap();
        let single = place.path().join("single");
        fs::write(&single, "12").unwrap();
        let found = find(&[root.clone(), single, root.join("a/../../photos/a")]).unwrap();
        let names: Vec<&str> = found.files.iter().map(|file| file.name.as_str()).collect();
        assert_eq!(names, ["photos/2", "photos/a/b/1", "single", "a/b/1"]);
        assert_eq!(found.bytes(), 3 + 2 + 3);
        assert!(found.errors.is_empty());
        let twice = find(&[root.clone(), root]).unwrap();
        assert_eq!(twice.files[2].name, "2/photos/2");
    }

    #[test]
    fn nothing_to_store_is_wrong_usage() {
        let place = tempfile::tempdir().unwrap();
        assert!(find(&[place.path().to_owned()]).unwrap_err().message.contains("nothing to store"));
        assert!(find(&[place.path().join("gone")]).unwrap_err().message.contains("cannot read"));
        assert!(find(&["/dev/null".into()]).unwrap_err().message.contains("no file and no folder"));
        assert_eq!(find(&[]).unwrap().files[0].name, "stripeset");
    }
}
