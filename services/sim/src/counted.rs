//! Structures of counts that add up and print themselves.

/// Declares one: a field for each count, and the words that are printed after it.
macro_rules! counted {
    ($(#[$attribute:meta])* $name:ident { $($(#[$doc:meta])* $field:ident: $words:literal,)* }) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name { $($(#[$doc])* pub $field: u64,)* }

        impl std::ops::AddAssign for $name {
            fn add_assign(&mut self, other: $name) { $(self.$field += other.$field;)* }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                $(writeln!(f, "{:>14}  {}", self.$field, $words)?;)*
                Ok(())
            }
        }
    };
}

pub(crate) use counted;
