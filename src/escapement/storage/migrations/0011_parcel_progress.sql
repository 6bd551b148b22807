-- How far a parcel has been moved: its letters up to this id are in the target's log, but for
-- those that are held, and are freed when nothing of it is left to be moved.
ALTER TABLE parcels ADD COLUMN moved_id BIGINT NOT NULL DEFAULT 0;
